"""Adapters of an engine: their names for callers, and their use by requests."""
