"""Runs that are killed at random points, and the proof that the next one makes up for it."""
