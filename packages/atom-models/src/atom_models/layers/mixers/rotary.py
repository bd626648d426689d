"""The table of rotary angles that a model's attention layers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from atom_kernels.rotary import RopeConfig, axes_of_frequencies, rope_cos_sin

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext


class StepAngles(NamedTuple):
    """Angles that were looked up for the tokens of a step: layers take them in the place of positions.

    Attributes:
        rows: int64 ``[T]``: 0, 1, 2 ...
        cos_sin: float32 ``[T, rotary_dim]``, the table in which these are.
    """

    rows: torch.Tensor
    cos_sin: torch.Tensor


@dataclass(frozen=True)
class Rotary:
    """Angles by position.

    Attributes:
        cos_sin_cache: float32 ``[positions, rotary_dim]``, cosines first, the scaling's attention factor included.
        interleaved: pairs are neighbors instead of halves.
    """

    cos_sin_cache: torch.Tensor
    interleaved: bool

    def at(self, positions: torch.Tensor, axes: torch.Tensor) -> StepAngles:
        """The angles of tokens that have positions in time, height and width.

        Args:
            positions: int64 ``[3, T]``.
            axes: int64 ``[rotary_dim]``: which of them each column of the table follows, see `axes_of_columns`.
        """
        num_tokens = positions.shape[1]
        cos_sin = self.cos_sin_cache[positions].gather(0, axes.expand(1, num_tokens, -1)).squeeze(0)
        return StepAngles(torch.arange(num_tokens, device=positions.device), cos_sin)


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


def axes_of_columns(rope_parameters: Mapping[str, Any], rotary: Rotary) -> torch.Tensor:
    """Which of three positions each column of a table follows, by `mrope_section` and `mrope_interleaved`.

    Raises:
        ValueError: the sections are not three, or do not come to the frequencies that there are.
    """
    sections, num_columns = tuple(rope_parameters.get("mrope_section") or ()), rotary.cos_sin_cache.shape[1]
    takes_turns = bool(rope_parameters.get("mrope_interleaved"))
    axes = axes_of_frequencies(sections, num_columns // 2, interleaved=takes_turns)
    return axes.repeat(2).to(rotary.cos_sin_cache.device)
