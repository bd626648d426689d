"""Data types."""
