"""The engine in a process of its own, and what is said between it and the API process."""
