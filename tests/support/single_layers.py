"""Layers alone: a context to build them in, and weights for them."""

from __future__ import annotations

import torch

from atom_models import BuildContext


def make_context(**overrides):
    return BuildContext(**{"dtype": torch.float32, **overrides})


def fill(layer, seed=0):
    """Random weights through the layer's own door; returns them by name."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(e.shape, generator=generator) for name, e in layer.expected_weights().items()}
    for name, weight in weights.items():
        layer.load_shard(name, weight)
    layer.finish()
    return weights


def close(actual, expected):
    return torch.allclose(actual, expected, atol=1e-5, rtol=1e-5)
