"""`counted_rows`: how many rows chose each expert while a model ran, for a placement that balances them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from atom_models.layers.mixture.moe import MoE


@contextmanager
def counted_rows(model: nn.Module, device: torch.device | str = "cpu") -> Iterator[Mapping[str, torch.Tensor]]:
    """Counts for as long as it is open: int64 ``[E]`` for each mixture, by its experts' name, on the model's device.

    A model that nobody counts is as it was. Every row of a call counts, and so do rows that only fill a captured step.
    """
    counts: dict[str, torch.Tensor] = {}
    hooks = []
    for layer in model.modules():
        if isinstance(layer, MoE):
            name, router = layer.experts.prefix, layer.router
            counts[name] = torch.zeros(router.problem.num_experts, dtype=torch.int64, device=device)
            hooks.append(router.register_forward_hook(partial(_count, counts[name])))
    try:
        yield counts
    finally:
        for hook in hooks:
            hook.remove()


def _count(counts_E: torch.Tensor, router: nn.Module, inputs: Any, chosen: tuple[torch.Tensor, torch.Tensor]) -> None:
    ids = chosen[1].flatten().long()
    counts_E.scatter_add_(0, ids, torch.ones_like(ids))
