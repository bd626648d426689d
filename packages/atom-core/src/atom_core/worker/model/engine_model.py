"""`EngineModel`: a model on its device, with its KV cache, run on batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from atom_core.worker.model.cached_mixers import CachedMixers
from atom_core.worker.model.engine_draft import EngineDraft
from atom_kernels.protocols import BatchGeometry, Caches
from atom_models.adapters.loaded import LoadedAdapters
from atom_models.adapters.step import AdapterStep
from atom_models.groups import WHOLE, Stage
from atom_models.layers.mixture.rebalancing import ExpertBalancer
from atom_models.layers.shared_vocabulary import UNSHARED_VOCABULARY, SharedVocabulary
from atom_models.vision.seen import SeenRows
from atom_models.vision.tower import VisionTower


class LayerStates(NamedTuple):
    """What a model's layers make of a batch of T tokens.

    Attributes:
        hidden_TD: after the last norm; of a stage that is not the last the residual, which the next one goes on from.
        aux: ``[T, D]`` each, after those layers that a draft model reads.
    """

    hidden_TD: torch.Tensor
    aux: Sequence[torch.Tensor] = ()

    def of_tokens(self, num_tokens: int) -> LayerStates:
        """The states of the first tokens."""
        return LayerStates(self.hidden_TD[:num_tokens], [each[:num_tokens] for each in self.aux])


@dataclass(frozen=True)
class EngineModel:
    """A loaded model; `with_caches` gives it the cache that it attends over.

    Attributes:
        run: ``(input_ids [T], positions [T]) -> hidden_states [T, D]``, or these and a list of `LayerStates.aux`, while
            attention is told of a batch. Stages after the first have in a third place what they go on from.
        compute_logits: ``hidden_states [n, D] -> float32 [n, vocab]``, of several ranks each its columns of
            `vocabulary`; the last stage's alone.
        classify: ``pooled hidden states [n, D] -> scores [n, labels]``; None where the model has no head for that.
        mixers: layers with a cache by their names, each with its `plan`.
        num_idle_weights: weights of the experts that a token does not choose.
        draft: a draft model that runs behind it; None without.
        vocabulary: how ranks share logits.
        sizes_told_apart: numbers of tokens, up to that given, for which its experts have different kernels.
        cached: the mixers over their caches.
        num_groups: how many groups its layers form.
        modules: its layers and their parts by name, which traces name; empty where it is compiled.
        stage: the layers that it has.
        mixers_of_stages: the mixers of all stages, by name; None where there is one stage.
        arriving: ``[most tokens, D]``, whose first rows hold what the stage before gave of a step; None in the first.
        balancer: moves experts between ranks; None where they stay.
        adapters: what its linears can add; None where it was built to take none.
        tower: makes features of pictures; None where it reads text alone, and in stages without one.
        take_part: runs its experts on rows of other engines alone; None where it shares none with these.
        run_as_written: `run` for steps with tokens of pictures, which are not compiled; None where `run` is not either.
    """

    run: Callable[..., Any]
    compute_logits: Callable[[torch.Tensor], torch.Tensor]
    mixers: Mapping[str, Any]
    num_idle_weights: int = 0
    draft: EngineDraft | None = None
    vocabulary: SharedVocabulary = UNSHARED_VOCABULARY
    sizes_told_apart: Callable[[int], Sequence[int]] = lambda most_tokens: ()
    cached: CachedMixers = field(default_factory=CachedMixers)
    num_groups: int = 0
    modules: Mapping[str, torch.nn.Module] = field(default_factory=dict)
    stage: Stage = WHOLE
    mixers_of_stages: Mapping[str, Any] | None = None
    arriving: torch.Tensor | None = None
    balancer: ExpertBalancer | None = None
    classify: Callable[[torch.Tensor], torch.Tensor] | None = None
    adapters: LoadedAdapters | None = None
    tower: VisionTower | None = None
    run_as_written: Callable[..., Any] | None = None
    take_part: Callable[[], None] | None = None

    @property
    def all_mixers(self) -> Mapping[str, Any]:
        """The mixers and those of the draft model: all that share the cache."""
        return self.mixers if self.draft is None else {**self.mixers, **self.draft.mixers}

    def with_caches(self, kv_caches: Mapping[str, Caches], groups: Sequence[Sequence[str]]) -> EngineModel:
        """The same model over `kv_caches`, by layer name; `groups` are the names of the layers of each group."""
        draft = None if self.draft is None else self.draft.with_caches(kv_caches, groups)
        cached = CachedMixers.over(self.mixers, kv_caches, groups)
        return replace(self, draft=draft, cached=cached, num_groups=len(groups))

    def why_not_capturable(self) -> str | None:
        """Why attention cannot be captured in a graph; None if it can."""
        of_draft = () if self.draft is None else self.draft.cached.plans
        for plan, _, layers in (*self.cached.plans, *of_draft):
            if not plan.capturable:
                return f"the {plan.backend} backend of {layers[0]} cannot be captured"
        return None

    @property
    def captures_prompts(self) -> bool:
        """Steps with prompts may be captured too."""
        return all(plan.captures_prompts for plan, _, _ in self.cached.plans)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        geometries: Sequence[BatchGeometry],
        adapters: AdapterStep | None = None,
        token_types: torch.Tensor | None = None,
        seen: SeenRows | None = None,
    ) -> LayerStates:
        """The states of int64 ``[T]`` ids at `positions`; `geometries` has one for each group.

        Args:
            positions: int64 ``[T]``, or ``[3, T]`` in time, height and width.
            adapters: which adapter each token has; None where none has one.
            token_types: int64 ``[T]``, 1 in the second of two texts; None where there is none.
            seen: rows of pictures, and what stands there; None where there are none.
        """
        with self.mixing(geometries, adapters):
            return self.run_layers(input_ids, positions, token_types, seen)

    def run_layers(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        token_types: torch.Tensor | None = None,
        seen: SeenRows | None = None,
    ) -> LayerStates:
        """As `forward`, while the mixers are told of the batch."""
        is_of_text = seen is None and positions.dim() == 1
        run = self.run if is_of_text or self.run_as_written is None else self.run_as_written
        if token_types is not None:
            output = run(input_ids, positions, token_types)
        elif self.arriving is not None:
            output = run(None, positions, self.arriving[: positions.shape[-1]])
        elif seen is not None:
            output = run(input_ids, positions, seen=seen)
        else:
            output = run(input_ids, positions)
        return LayerStates(*output) if isinstance(output, tuple) else LayerStates(output)

    def compute_whole_logits(self, hidden_nD: torch.Tensor) -> torch.Tensor:
        """Float32 ``[n, vocab]``, on every rank."""
        return self.vocabulary.whole(self.compute_logits(hidden_nD))

    def mixing(
        self, geometries: Sequence[BatchGeometry], adapters: AdapterStep | None = None
    ) -> AbstractContextManager[None]:
        """Tell the mixers of a batch, whose `geometries` are one for each group, and linears of its adapters."""
        return self.cached.mixing(geometries, adapters)
