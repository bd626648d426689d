"""Modules to run with ``python -m``, by the names that ROCm/ATOM has."""
