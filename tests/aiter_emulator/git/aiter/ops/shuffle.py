"""Orders of weights."""

import torch

from tests.aiter_emulator.semantics import int4_experts, shuffle
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def shuffle_weight(
    x: torch.Tensor,
    layout=(16, 16),
    use_int4=False,
    is_guinterleave=False,
    gate_up: bool = False,
    pad_k_to: int = 0,
) -> torch.Tensor:
    if is_guinterleave:
        raise NotImplementedError("the emulator has the order of 16-bit weights, not that of a16w4")
    return shuffle.shuffle_weight(x, layout, use_int4, pad_k_to)


@emulated
def pack_int8_to_packed_int4(x_shuf_i8: torch.Tensor) -> torch.Tensor:
    return int4_experts.pack(x_shuf_i8)


@emulated
def shuffle_scale_for_int4(scale: torch.Tensor, group_size: int = 32) -> torch.Tensor:
    return int4_experts.order_scales(scale, group_size)
