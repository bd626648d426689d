"""Loads a model for the engine, through `atom_models`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from atom_core.config.sections import EngineConfig
from atom_kernels.platform import detect_platform
from atom_models import (
    BuildContext,
    attention_layers,
    build_model,
    load_dummy_weights,
    load_weights,
    open_checkpoint,
)


@dataclass(frozen=True)
class EngineModel:
    """What the runner needs of a model.

    Attributes:
        forward: ``(input_ids [T], positions [T]) -> hidden_states [T, D]``.
        compute_logits: ``hidden_states [n, D] -> float32 [n, vocab]``.
        attention_layers: by name, each with its `plan`.
    """

    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    compute_logits: Callable[[torch.Tensor], torch.Tensor]
    attention_layers: Mapping[str, Any]

    @cached_property
    def plans(self) -> list[tuple[Any, list[str]]]:
        """The distinct plans with the names of their layers: each needs its metadata built once a step."""
        names: dict[Any, list[str]] = {}
        for name, layer in self.attention_layers.items():
            names.setdefault(layer.plan, []).append(name)
        return list(names.items())


def load_engine_model(config: EngineConfig) -> EngineModel:
    """Build `config.model` on this machine's device and load its weights."""
    checkpoint = open_checkpoint(config.model.path)
    context = BuildContext(
        platform=detect_platform(),
        dtype=getattr(torch, config.model.dtype),
        device=torch.device(config.device),
        cache_dtype=config.cache.dtype,
        block_size=config.cache.block_size,
        max_model_len=config.model.max_model_len,
    )
    model = build_model(checkpoint, context)
    if config.model.load_dummy:
        load_dummy_weights(model, checkpoint)
    else:
        load_weights(model, checkpoint, progress=sys.stderr.isatty())
    model.eval()
    compute_logits: Any = model.compute_logits
    return EngineModel(model, compute_logits, attention_layers(model))
