"""Tiny adapters as PEFT saves them, and checkpoints with one merged into their weights by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

ALL_LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
Matrices = dict[str, np.ndarray]


def make_adapter(
    folder: str | Path,
    base: str | Path,
    *,
    seed: int = 0,
    modules: Sequence[str] = ALL_LINEARS,
    rank: int = 4,
    ranks: Mapping[str, int] | None = None,
    std: float = 0.2,
    change: Callable[[Matrices], Any] | None = None,
    **config: Any,
) -> Path:
    """Writes an adapter for the modules of a checkpoint whose last names are given, and returns its folder.

    Args:
        ranks: names the modules with another rank, by their last names.
        std: the standard deviation of the numbers in A and B.
        change: edits the tensors before they are written.
        config: further fields of adapter_config.json.
    """
    folder, rng = Path(folder), np.random.default_rng(1000 + seed)
    folder.mkdir(parents=True, exist_ok=True)
    tensors: Matrices = {}
    for name, weight in sorted(load_file(Path(base) / "model.safetensors").items()):
        module = name.removesuffix(".weight")
        last = module.rpartition(".")[2]
        if last in modules and weight.ndim == 2:
            own = (ranks or {}).get(last, rank)
            for matrix, shape in (("A", (own, weight.shape[1])), ("B", (weight.shape[0], own))):
                numbers = rng.standard_normal(shape, dtype=np.float32) * np.float32(std)
                tensors[f"base_model.model.{module}.lora_{matrix}.weight"] = numbers
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    written = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "use_rslora": False}
    written |= {"target_modules": sorted(modules), "rank_pattern": dict(ranks or {}), "alpha_pattern": {}, **config}
    (folder / "adapter_config.json").write_text(json.dumps(written))
    return folder


def adapter_of_all(folder: Path, model: Path, *, seed: int = 1, std: float = 0.12) -> Path:
    """Writes an adapter for all linears of a model that take one, and returns its folder."""
    from atom_models import BuildContext, open_checkpoint
    from atom_models.adapters.loaded import LoadedAdapters
    from atom_models.model import construct_model

    context = BuildContext(takes_adapters=True, max_model_len=16)
    built = construct_model(open_checkpoint(model), context)
    linears = LoadedAdapters(built, context, max_loras=1, max_rank=1).linears

    def leave_out_others(tensors: Matrices) -> None:
        for name in list(tensors):
            if name.removeprefix("base_model.model.").rpartition(".lora_")[0] not in linears:
                del tensors[name]

    names = sorted({name.rpartition(".")[2] for name in linears})
    return make_adapter(folder, model, seed=seed, std=std, modules=names, change=leave_out_others)


def merge(folder: str | Path, base: str | Path, adapter: str | Path) -> Path:
    """Writes the checkpoint `base` with ``W + scaling * B @ A`` in the place of W, and returns its folder."""
    shutil.copytree(base, folder)
    config = json.loads((Path(adapter) / "adapter_config.json").read_text())
    tensors, low_rank = (
        load_file(Path(base) / "model.safetensors"),
        load_file(Path(adapter) / "adapter_model.safetensors"),
    )
    for name in list(tensors):
        module = name.removesuffix(".weight")
        a = low_rank.get(f"base_model.model.{module}.lora_A.weight")
        if a is not None:
            b = low_rank[f"base_model.model.{module}.lora_B.weight"].astype(np.float64)
            alpha = _of_module(config["alpha_pattern"], module, config["lora_alpha"])
            scaling = alpha / (sqrt(len(a)) if config["use_rslora"] else len(a))
            tensors[name] = (tensors[name] + scaling * (b @ a)).astype(np.float32)
    save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
    return Path(folder)


def _of_module(numbers: Mapping[str, float], module: str, default: float) -> float:
    return next((number for name, number in numbers.items() if f".{module}".endswith(f".{name}")), default)
