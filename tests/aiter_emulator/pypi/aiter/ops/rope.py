"""Rotary embedding at given positions. Annotated to return a tensor, and returning none, as the real ones."""

from torch import Tensor

from tests.aiter_emulator.semantics import rope
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def rope_cached_positions_2c_fwd_inplace(
    input_x: Tensor,
    input_y: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> Tensor:
    rope.rotate_in_place(
        {"input_x": input_x, "input_y": input_y}, cos, sin, positions, rotate_style, reuse_freqs_front_part, nope_first
    )


@emulated
def rope_cached_positions_fwd_inplace(
    input: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    rotate_style: int,
    reuse_freqs_front_part: bool,
    nope_first: bool,
) -> Tensor:
    rope.rotate_in_place({"input": input}, cos, sin, positions, rotate_style, reuse_freqs_front_part, nope_first)
