"""The error of everything that can be wrong with a checkpoint."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged or of a kind that cannot be loaded; the message is one line that says which."""
