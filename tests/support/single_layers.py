"""Layers alone: a context to build them in, and weights for them."""

from __future__ import annotations

import torch

from atom_models import BuildContext
from atom_models.layers.loadable import expected_weights


def make_context(**overrides):
    return BuildContext(**{"dtype": torch.float32, **overrides})


def fill(layer, seed=0):
    """Random weights through the layer's own door; returns them by name."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: torch.randn(e.shape, generator=generator) for name, e in expected_weights(layer).items()}
    for name, weight in weights.items():
        layer.load_shard(name, weight)
    layer.finish()
    return weights


def is_packed(layer, platform):
    """Whether any of a layer's weights would be held in another format than plain numbers there."""
    return any(weights.packed_on is not None and weights.packed_on(platform) for weights in layer.weights())


def bytes_on_rank(layer):
    """Bytes of this rank's part of each weight, as a plan counts them."""
    return [one.stored_bytes for weights in layer.weights() for one in weights.on_rank]


def close(actual, expected):
    return torch.allclose(actual, expected, atol=1e-5, rtol=1e-5)
