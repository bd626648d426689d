"""The table of rotary angles that a model's attention layers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.rotary import RopeConfig, rope_cos_sin

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


@dataclass(frozen=True)
class Rotary:
    """Angles by position.

    Attributes:
        cos_sin_cache: float32 ``[positions, rotary_dim]``, cosines first, the scaling's attention factor included.
        interleaved: pairs are neighbors instead of halves.
    """

    cos_sin_cache: torch.Tensor
    interleaved: bool


def make_rotary(
    rope_parameters: Mapping[str, Any],
    head_dim: int,
    max_position_embeddings: int,
    *,
    context: BuildContext,
    interleaved: bool = False,
) -> Rotary:
    """The table for ``context.max_model_len`` positions (None: `max_position_embeddings`).

    Raises:
        ValueError: an unknown rope type, or one that lacks a parameter; it names the parameter.
    """
    config = RopeConfig.from_parameters(
        rope_parameters,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        max_position=context.max_model_len,
    )
    return Rotary(rope_cos_sin(config).to(context.device), interleaved)
