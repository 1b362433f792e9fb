"""The numbers of the project, measured on the machine at hand: `make bench`."""
