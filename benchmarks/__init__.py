"""Benchmarks of the engine against other engines and against the machine: `python -m benchmarks --help`."""
