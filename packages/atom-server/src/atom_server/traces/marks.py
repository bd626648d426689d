"""What the marks of a trace mean: steps of the engine, and modules of the model."""

from __future__ import annotations

import re
from typing import NamedTuple

_STEP = re.compile(r"(prefill|decode|mixed)\[requests=\d+ tokens=\d+\]")
_LAYER = re.compile(r"(?P<before>[^\d.][^.]*(?:\.[^\d.][^.]*)*)\.(?P<number>\d+)(?:\.(?P<part>.+))?")
# What the engine marks beside steps and modules.
_OTHER_MARKS = ("sample", "draft")


class LayerPart(NamedTuple):
    """A module within a layer; `part` is empty for the layer itself."""

    number: int
    part: str


def kind_of_step(name: str) -> str | None:
    """ "prefill", "decode" or "mixed"; None for a mark that is no step."""
    found = _STEP.fullmatch(name)
    return found.group(1) if found else None


def is_module(name: str) -> bool:
    """Whether a mark within a step is that of a module."""
    return name not in _OTHER_MARKS and kind_of_step(name) is None


def layer_part(module: str) -> LayerPart | None:
    """Which layer a module lies in: the first number of its name says so. None outside of layers."""
    found = _LAYER.fullmatch(module)
    return LayerPart(int(found["number"]), found["part"] or "") if found else None
