"""`EngineModel`: a model on its device, with its KV cache, run on batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from atom_kernels.protocols import BatchGeometry, Caches
from atom_models.forward_context import ForwardContext, set_forward_context


@dataclass(frozen=True)
class EngineModel:
    """A loaded model; `with_caches` gives it the cache that it attends over.

    Attributes:
        run: ``(input_ids [T], positions [T]) -> hidden_states [T, D]``, while attention is told of a batch.
        compute_logits: ``hidden_states [n, D] -> float32 [n, vocab]``.
        mixers: by name, each with its `plan`.
        num_idle_weights: of the experts that a token does not choose.
        kv_caches: by layer name.
        plans: of attention, each with its group's index and the names of its layers. Each needs its metadata built
            once a step.
        num_groups: of layers.
    """

    run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    compute_logits: Callable[[torch.Tensor], torch.Tensor]
    mixers: Mapping[str, Any]
    num_idle_weights: int = 0
    kv_caches: Mapping[str, Caches] = field(default_factory=dict)
    plans: Sequence[tuple[Any, int, Sequence[str]]] = ()
    num_groups: int = 0

    def with_caches(self, kv_caches: Mapping[str, Caches], groups: Sequence[Sequence[str]]) -> EngineModel:
        """The same model over `kv_caches`, by layer name; `groups` are the names of the layers of each group."""
        names: dict[tuple[Any, int], list[str]] = {}
        for index, layers in enumerate(groups):
            for name in layers:
                names.setdefault((self.mixers[name].plan, index), []).append(name)
        plans = [(plan, index, layers) for (plan, index), layers in names.items()]
        return replace(self, kv_caches=kv_caches, plans=plans, num_groups=len(groups))

    @property
    def has_experts(self) -> bool:
        """Each token chooses among experts."""
        return self.num_idle_weights > 0

    def why_not_capturable(self) -> str | None:
        """Why attention cannot be captured in a graph; None if it can."""
        for plan, _, layers in self.plans:
            if not plan.capturable:
                return f"the {plan.backend} backend of {layers[0]} cannot be captured"
        return None

    @property
    def captures_prompts(self) -> bool:
        """Steps with prompts may be captured too."""
        return all(plan.captures_prompts for plan, _, _ in self.plans)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, geometries: Sequence[BatchGeometry]
    ) -> torch.Tensor:
        """Hidden states ``[T, D]`` of int64 ``[T]`` ids at `positions`; `geometries` has one for each group."""
        with self.attending(geometries):
            return self.run(input_ids, positions)

    @contextmanager
    def attending(self, geometries: Sequence[BatchGeometry]) -> Iterator[None]:
        """Tell attention of a batch, whose `geometries` are one for each group."""
        with set_forward_context(ForwardContext(self.kv_caches, self._build_metadata(geometries), self.mixers)):
            yield

    def _build_metadata(self, geometries: Sequence[BatchGeometry]) -> dict[str, Any]:
        """The metadata of a batch by layer name; layers of one plan share theirs."""
        metadata: dict[str, Any] = {}
        for plan, group, names in self.plans:
            metadata.update(dict.fromkeys(names, plan.runner.build_metadata(geometries[group])))
        return metadata
