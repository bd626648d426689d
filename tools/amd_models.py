"""Writes into docs/amd.md which kernel serves which published model on AMD Instinct.

PYTHONPATH=.:tests/support python tools/amd_models.py

Models are built from their published configs, unquantized and a few layers deep, and are asked what they selected.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from torch import nn

from amd_machine import amd_machine
from atom_kernels.mixers import MixerPlan, select_mixer
from atom_kernels.moe.ops import MOE_EXPERTS, MOE_ROUTE
from atom_kernels.operator import Op
from atom_kernels.platform import Platform
from atom_kernels.select import select
from atom_models.build_context import BuildContext
from atom_models.checkpoint import open_checkpoint
from atom_models.layers import Experts
from atom_models.layers.mixture.moe import Router
from atom_models.model import build_model, mixer_layers
from published_configs import FOLDER, NAMES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "amd.md"
BEGIN, END = "<!-- models: begin (tools/amd_models.py) -->", "<!-- models: end -->"
# Enough to meet every kind of layer that the published models have.
_LAYERS = 5
_HEAD = ("model", "attention", "cache layout", "routing", "experts")


def render(text: str, rows: str) -> str:
    """The page with the table's rows between its marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{rows}\n{END}{after}"


def table(arch: str = "gfx942", release: str = "git") -> str:
    """A row for each published model."""
    rows = [_HEAD, ("---",) * len(_HEAD)]
    with amd_machine(arch, release) as platform:
        models = {name: _build(name, platform) for name in NAMES}
    # Operators are selected as for a real GPU, where Triton serves what AITER does not.
    real = Platform.rocm(arch, release=release)
    rows += [(name, *_selected(model, real)) for name, model in models.items()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _build(name: str, platform: Platform) -> nn.Module:
    config = json.loads((FOLDER / f"{name}.json").read_text())
    config.pop("quantization_config", None)
    config["num_hidden_layers"] = _LAYERS
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:_LAYERS]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        # Tables of rotations for the whole context would take longer than all else, and no selection depends on them.
        context = BuildContext(platform=platform, dtype=torch.bfloat16, max_model_len=1024)
        return build_model(open_checkpoint(Path(folder)), context)


def _selected(model: nn.Module, platform: Platform) -> tuple[str, str, str, str]:
    problems = dict.fromkeys(layer.plan.problem for layer in mixer_layers(model).values() if layer.plan is not None)
    plans = [select_mixer(problem, platform) for problem in problems]
    kernels = ", ".join(dict.fromkeys(_kernels(plan) for plan in plans))
    layouts = ", ".join(dict.fromkeys(plan.layout.name for plan in plans))
    return kernels, layouts, _rows(model, Router, MOE_ROUTE, platform), _rows(model, Experts, MOE_EXPERTS, platform)


def _kernels(plan: MixerPlan) -> str:
    return ", ".join(f"`{name}`" for name in plan.kernels) or plan.backend


def _rows(model: nn.Module, kind: type[Router | Experts], op: Op, platform: Platform) -> str:
    problems = dict.fromkeys(layer.problem for layer in model.modules() if isinstance(layer, kind))
    plans = [select(op, problem, platform) for problem in problems]
    return ", ".join(dict.fromkeys(row.implementation for plan in plans for row in plan.rows)) or "-"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(), table()))
