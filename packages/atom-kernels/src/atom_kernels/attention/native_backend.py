"""Attention by our own C kernels."""

from __future__ import annotations

NAME = "native"


def supports(problem, platform):
    return "not built yet"


create = None
