"""`AttentionWeights`: what one attention layer has learned besides its projections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class AttentionWeights:
    """See `AttentionProblem.weights`.

    Attributes:
        sinks: ``[num_heads]``, None for no sinks.
        key_scale, value_scale: float32 ``[num_kv_heads]``: a number is what is cached of it times this; None for 1.
    """

    sinks: torch.Tensor | None = None
    key_scale: torch.Tensor | None = None
    value_scale: torch.Tensor | None = None

    @classmethod
    def of(cls, weights: Mapping[str, torch.Tensor | None]) -> AttentionWeights:
        """The problem's weights, by name."""
        return cls(**weights)

    @property
    def head_scales(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Those of keys and of values, None for none."""
        return None if self.key_scale is None or self.value_scale is None else (self.key_scale, self.value_scale)


NO_WEIGHTS = AttentionWeights()
