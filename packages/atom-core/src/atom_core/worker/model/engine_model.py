"""`PagedModel`: a model with its KV cache, run on batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from atom_core.worker.model.loading import EngineModel
from atom_kernels.protocols import BatchGeometry
from atom_models.forward_context import ForwardContext, set_forward_context


class PagedModel:
    """Runs an `EngineModel` over its pages.

    Args:
        model: with its weights.
        kv_caches: by layer name.
        groups: names of the layers of each group.

    Attributes:
        compute_logits: ``hidden_states [n, D] -> float32 [n, vocab]``.
        run: ``(input_ids [T], positions [T]) -> hidden_states [T, D]``, while attention is told of a batch.
        attention_layers, kv_caches: by name.
        num_groups: of layers.
        has_experts: that a token chooses among.
        plans: of attention, each with its group's index and the names of its layers.
    """

    def __init__(
        self,
        model: EngineModel,
        kv_caches: Mapping[str, tuple[torch.Tensor, ...]],
        groups: Sequence[Sequence[str]],
    ) -> None:
        self.run = model.forward
        self.compute_logits = model.compute_logits
        self.attention_layers = model.attention_layers
        self.kv_caches = kv_caches
        self.num_groups = len(groups)
        self.has_experts = model.num_idle_weights > 0
        self.plans = model.plans_by_group(groups)

    def why_not_capturable(self) -> str | None:
        """What of attention cannot be captured in a graph; None if all can."""
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
        with set_forward_context(ForwardContext(self.kv_caches, self._build_metadata(geometries))):
            yield

    def _build_metadata(self, geometries: Sequence[BatchGeometry]) -> dict[str, Any]:
        """What attention needs to know of a batch, by layer name."""
        metadata: dict[str, Any] = {}
        for plan, group, names in self.plans:
            metadata.update(dict.fromkeys(names, plan.build_metadata(geometries[group])))
        return metadata
