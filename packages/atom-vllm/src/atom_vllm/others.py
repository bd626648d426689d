"""Other platform plugins beside ours."""

from __future__ import annotations

import importlib.metadata


def platform_plugins() -> list[importlib.metadata.EntryPoint]:
    """Every one that is installed, ours among them."""
    return list(importlib.metadata.entry_points(group="vllm.platform_plugins"))


def other_plugins() -> list[str]:
    """Those that are not ours, each with the distribution that it is of."""
    return [
        f"{point.name} of {point.dist.name if point.dist else 'an unknown distribution'}"
        for point in platform_plugins()
        if not point.value.startswith("atom_vllm.")
    ]
