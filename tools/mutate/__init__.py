"""Puts mistakes into the product, one at a time and in memory, and sees which the tests find: ``python -m tools.mutate``."""
