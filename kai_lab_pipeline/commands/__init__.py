"""What the commands of `kai-lab` do; `cli.py` only says how they are called."""
