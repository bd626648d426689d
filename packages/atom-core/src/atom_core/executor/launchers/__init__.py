"""Who places the ranks of an engine, and starts their processes."""
