"""A run as charts, and as a page in one file."""
