"""The two ways in which a call is wrong."""

from __future__ import annotations


class Refused(RuntimeError):
    """The real function raises here too (TORCH_CHECK, AITER_CHECK)."""


class SilentlyWrong(Exception):
    """The real kernel takes this call and returns numbers that its caller does not mean, or corrupts memory."""
