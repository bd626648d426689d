"""What each module of a model multiplies with, for traces: the least time of a module follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from atom_models.layers import LMHead, Mixer, VocabularyEmbedding
from atom_models.layers.loadable import Loadable
from atom_models.layers.weights import Weights


def module_matrices(modules: Mapping[str, nn.Module]) -> dict[str, dict[str, Any]]:
    """For each module with matrices of its own JSON values: ``bytes`` that this rank keeps of them, their ``numbers``,
    ``experts`` (how many a token chooses, and of how many), and ``is_head`` where only sampled tokens meet them.

    Layers with a cache are left out: their time depends on what is cached.
    """
    found: dict[str, dict[str, Any]] = {}
    table: list[Weights] = []
    for name, module in modules.items():
        if not isinstance(module, Loadable) or isinstance(module, Mixer):
            continue
        weights = [one for one in module.weights() if one.held is not None]
        if isinstance(module, VocabularyEmbedding):
            table = weights
            continue
        is_head = isinstance(module, LMHead)
        if weights := weights or (table if is_head else []):
            found[name] = {
                "bytes": sum(one.held().num_bytes for one in weights if one.held is not None),
                "numbers": sum(one.num_numbers for one in weights),
                "experts": list(weights[0].chosen or (1, 1)),
                "is_head": is_head,
            }
    return found
