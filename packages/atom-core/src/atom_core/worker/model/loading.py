"""Loads a model for the engine, through `atom_models`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from atom_core.config.sections import EngineConfig
from atom_core.worker.model.compilation import compile_model
from atom_kernels.platform import detect_platform
from atom_models import (
    BuildContext,
    attention_layers,
    build_model,
    load_dummy_weights,
    load_weights,
    num_idle_weights,
    open_checkpoint,
)


@dataclass(frozen=True)
class EngineModel:
    """What the runner needs of a model.

    Attributes:
        forward: ``(input_ids [T], positions [T]) -> hidden_states [T, D]``.
        compute_logits: ``hidden_states [n, D] -> float32 [n, vocab]``.
        attention_layers: by name, each with its `plan`.
        num_idle_weights: of the experts that a token does not choose.
    """

    forward: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    compute_logits: Callable[[torch.Tensor], torch.Tensor]
    attention_layers: Mapping[str, Any]
    num_idle_weights: int = 0

    def plans_by_group(self, groups: Sequence[Sequence[str]]) -> list[tuple[Any, int, list[str]]]:
        """The distinct plans of each group of layers, with the group's index and the names of their layers.

        Each of these needs its metadata built once a step.
        """
        names: dict[tuple[Any, int], list[str]] = {}
        for index, layers in enumerate(groups):
            for name in layers:
                names.setdefault((self.attention_layers[name].plan, index), []).append(name)
        return [(plan, index, layers) for (plan, index), layers in names.items()]


def load_engine_model(config: EngineConfig) -> EngineModel:
    """Build `config.model` on this machine's device and load its weights."""
    checkpoint = open_checkpoint(config.model.path)
    context = BuildContext(
        platform=replace(detect_platform(), batch_invariant=config.compile.batch_invariant),
        dtype=getattr(torch, config.model.dtype),
        device=torch.device(config.device),
        cache_dtype=config.cache.dtype,
        block_size=config.cache.block_size,
        max_model_len=config.model.max_model_len,
    )
    model = build_model(checkpoint, context)
    if config.model.load_dummy:
        load_dummy_weights(model, checkpoint, device=config.device)
    else:
        load_weights(model, checkpoint, progress=sys.stderr.isatty())
    model.eval()
    compute_logits: Any = model.compute_logits
    idle = num_idle_weights(model)
    return EngineModel(compile_model(model, config), compute_logits, attention_layers(model), idle)
