"""The story of docs/rematerialise.md: a lab that is changed a dozen times, and what each change costs."""
