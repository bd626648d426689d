"""The error of this folder."""

from __future__ import annotations


class ModelNotFoundError(ValueError):
    """No files for a model's name; the one-line message says what to do."""
