"""What the marks of a trace mean: steps of the engine, and modules of the model."""

from __future__ import annotations

import re
from typing import NamedTuple

_STEP = re.compile(r"(prefill|decode|mixed)\[requests=(\d+) tokens=(\d+)\]")
_LAYER = re.compile(r"(?P<before>[^\d.][^.]*(?:\.[^\d.][^.]*)*)\.(?P<number>\d+)(?:\.(?P<part>.+))?")
_GRAPHS = re.compile(r"graphs \d+")
# What the engine marks beside steps and modules.
_OTHER_MARKS = ("sample", "draft")


class StepMark(NamedTuple):
    """What a step's mark says of it; `kind` is "prefill", "decode" or "mixed"."""

    kind: str
    num_requests: int
    num_tokens: int


class LayerPart(NamedTuple):
    """A module within a layer; `part` is empty for the layer itself."""

    number: int
    part: str


def step_mark(name: str) -> StepMark | None:
    """None for a mark that is no step."""
    found = _STEP.fullmatch(name)
    return StepMark(found[1], int(found[2]), int(found[3])) if found else None


def is_module(name: str) -> bool:
    """Whether a mark within a step is that of a module."""
    return name not in _OTHER_MARKS and step_mark(name) is None and not marks_graphs(name)


def marks_graphs(name: str) -> bool:
    """Whether a mark is that of graphs: all that one capture made, in order, or their replay."""
    return _GRAPHS.fullmatch(name) is not None


def layer_part(module: str) -> LayerPart | None:
    """Which layer a module lies in: the first number of its name says so. None outside of layers."""
    found = _LAYER.fullmatch(module)
    return LayerPart(int(found["number"]), found["part"] or "") if found else None
