"""What each module of a model multiplies with, for traces: the least time of a module follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from atom_models.requirements.products import products


def module_matrices(modules: Mapping[str, nn.Module]) -> dict[str, dict[str, Any]]:
    """For each module that `products` has JSON values: ``bytes`` that this rank keeps of its matrices, their
    ``numbers``, ``experts`` (how many a token chooses, and of how many), and ``is_head``.
    """
    names = {module: name for name, module in modules.items()}
    return {
        names[module]: {
            "bytes": sum(one.held().num_bytes for one in weights if one.held is not None),
            "numbers": sum(one.num_numbers for one in weights),
            "experts": list(weights[0].chosen or (1, 1)),
            "is_head": is_head,
        }
        for module, weights, is_head in products(modules.values())
    }
