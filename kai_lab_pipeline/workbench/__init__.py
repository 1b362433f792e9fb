"""The lab at work, without Dagster: its state folder and lock, observing, waiting, and writing the report."""
