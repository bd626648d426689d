"""Other platform plugins beside ours: vLLM takes one, and tells plugins apart by their names alone."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

NAME = "atom"


@dataclass(frozen=True)
class OtherPlugin:
    """One that is not ours, and the distribution that it came with."""

    name: str
    distribution: str

    @property
    def shares_our_name(self) -> bool:
        """Then vLLM takes either, and does not say which."""
        return self.name == NAME

    def __str__(self) -> str:
        way_out = (
            "both have that name, so vLLM may take either, and VLLM_PLUGINS cannot tell them apart: uninstall one"
            if self.shares_our_name
            else "vLLM takes one only: choose with VLLM_PLUGINS=atom,atom_model_registry, or uninstall one"
        )
        return f"{self.name} of {self.distribution}; {way_out}"


def platform_plugins() -> list[importlib.metadata.EntryPoint]:
    """Every one that is installed, ours among them."""
    return list(importlib.metadata.entry_points(group="vllm.platform_plugins"))


def other_plugins() -> list[OtherPlugin]:
    """Those that are not ours."""
    return [
        OtherPlugin(point.name, point.dist.name if point.dist else "an unknown distribution")
        for point in platform_plugins()
        if not point.value.startswith("atom_vllm.")
    ]
