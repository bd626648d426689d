"""From what callers send to what the engine can take as it is."""
