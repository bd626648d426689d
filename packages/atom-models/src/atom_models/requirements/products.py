"""Which layers multiply tokens with matrices of their own, and with which."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torch import nn

from atom_models.layers import LMHead, Mixer, VocabularyEmbedding
from atom_models.layers.loadable import as_loadable
from atom_models.layers.weights import Weights


def products(modules: Iterable[nn.Module]) -> Iterator[tuple[nn.Module, list[Weights], bool]]:
    """Each layer, its matrices, and whether only sampled tokens meet them; a tied head has those of the embedding.

    Layers with a cache are left out: their time depends on what is cached.
    """
    table: list[Weights] = []
    for module in modules:
        owner = as_loadable(module)
        if owner is None or isinstance(module, Mixer):
            continue
        weights = [one for one in owner.weights() if one.held is not None and one.on_rank]
        if isinstance(module, VocabularyEmbedding):
            table = weights
            continue
        is_head = isinstance(module, LMHead)
        if found := weights or (table if is_head else []):
            yield module, found, is_head
