"""Adapters of an engine: their names on the side of callers, and their use on the side of the engine."""
