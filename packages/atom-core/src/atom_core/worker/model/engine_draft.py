"""`EngineDraft`: a draft model on the device, with its part of the KV cache, run on batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from atom_core.worker.model.cached_mixers import CachedMixers
from atom_kernels.protocols import SINGLE_RANK, BatchGeometry, Caches, Collectives
from atom_models.drafting import DraftModel
from atom_models.layers.shared_vocabulary import SharedVocabulary


@dataclass(frozen=True)
class EngineDraft:
    """A loaded draft model; its layers have blocks in the groups of the model that it runs behind.

    Attributes:
        model: what guesses.
        mixers: layers with a cache by the names under which the engine keeps their caches, each with its `plan`; no
            name is one of the other model's.
        prefix: what these names begin with, before those that the layers have themselves: a whole model may have the
            same as the other one.
        cached: the mixers over their caches.
        ranks: the ranks that share its logits.
    """

    model: DraftModel
    mixers: Mapping[str, Any]
    prefix: str = ""
    cached: CachedMixers = field(default_factory=CachedMixers)
    ranks: Collectives = SINGLE_RANK

    def with_caches(self, kv_caches: Mapping[str, Caches], groups: Sequence[Sequence[str]]) -> EngineDraft:
        """See `EngineModel.with_caches`."""
        own_caches = {self._own(name): kv_caches[name] for name in self.mixers}
        own_groups = [[self._own(name) for name in group if name in self.mixers] for group in groups]
        own_mixers = {self._own(name): mixer for name, mixer in self.mixers.items()}
        return replace(self, cached=CachedMixers.over(own_mixers, own_caches, own_groups))

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        features_TD: torch.Tensor,
        geometries: Sequence[BatchGeometry],
        step: int = 0,
    ) -> torch.Tensor:
        """See `DraftModel.forward`; `geometries` has one for each group."""
        with self.cached.mixing(geometries):
            return self.model.forward(input_ids, positions, features_TD, step)

    def keep(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        features_TD: torch.Tensor,
        geometries: Sequence[BatchGeometry],
    ) -> None:
        """Write what is kept of the tokens of decodes, of which nothing else is wanted; see `DraftModel.keep`."""
        if len(self.mixers) == 1 and all(geometry.max_query_len == 1 for geometry in geometries):
            # Nobody reads what the only attention gives, so it may as well see nothing: keys are long to read.
            geometries = [replace(each, seq_lens=torch.ones_like(each.seq_lens)) for each in geometries]
        with self.cached.mixing(geometries):
            self.model.keep(input_ids, positions, features_TD)

    def guess(self, features_nD: torch.Tensor) -> torch.Tensor:
        """The most likely tokens by what `forward` gave, int64 ``[n]`` in the ids of the model that generates."""
        logits_nR = self.model.compute_logits(features_nD)
        if self.ranks.size == 1:
            ids = logits_nR.argmax(dim=-1)
        else:
            vocabulary = SharedVocabulary(self.ranks, self.model.vocab_size)
            vocabulary.hide_padding(logits_nR)
            ids, _ = vocabulary.best(logits_nR.argmax(dim=-1), logits_nR)
        target_ids = self.model.target_ids
        return ids if target_ids is None else target_ids[ids]

    def _own(self, name: str) -> str:
        """The name that a layer has itself."""
        return name.removeprefix(self.prefix)
