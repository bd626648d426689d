"""Continuous integration: the checks and the tests of a clone, and one summary of them."""
