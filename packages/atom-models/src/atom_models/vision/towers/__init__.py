"""The towers: one file for each."""
