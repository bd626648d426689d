"""Placeholder, replaced by the package owner."""
