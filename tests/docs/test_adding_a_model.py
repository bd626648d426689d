"""The guide to adding a model names what is there."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from torch import nn

from atom_models import layers
from atom_models.layers import Loadable

PAGE = (Path(__file__).parents[2] / "docs" / "adding-a-model.md").read_text()


def test_every_layer_is_in_the_list():
    section = PAGE.partition("## The layers\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([A-Z]\w+)`", row.split("|")[1])} - {"Rotary"}
    exported = {name for name in layers.__all__ if is_layer(getattr(layers, name))}
    assert listed == exported


def is_layer(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, nn.Module) and value is not layers.Layer


def test_every_member_of_a_loadable_layer_is_explained():
    members = {name for name in vars(Loadable) if not name.startswith("_")} | set(Loadable.__annotations__)
    section = PAGE.partition("## A layer of your own")[2].partition("```")[0]
    explained = re.findall(r"^\| `(\w+)", section, re.MULTILINE)
    assert set(explained) == members


def test_the_commands_paths_are_there():
    root = Path(__file__).parents[2]
    [command] = re.findall(r"hatch run pytest (.*)$", PAGE, re.MULTILINE)
    paths = [word for word in command.split() if "/" in word]
    assert len(paths) == 2
    assert all((root / path).exists() for path in paths)
