"""The error of everything that can be wrong with an adapter."""

from __future__ import annotations


class AdapterError(ValueError):
    """An adapter is missing, damaged, or of a kind that cannot be served; the message is one line that says which."""
