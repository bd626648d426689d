"""Modules to run with ``python -m``."""
