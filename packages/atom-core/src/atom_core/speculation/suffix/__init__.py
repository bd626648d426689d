"""Suffix lookup: a request goes on as it, or earlier outputs of its salt, most often did after the same tokens."""
