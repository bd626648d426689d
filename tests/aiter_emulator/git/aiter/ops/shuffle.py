"""Orders of weights."""

import torch

from tests.aiter_emulator.semantics import shuffle


def shuffle_weight(
    x: torch.Tensor,
    layout=(16, 16),
    use_int4=False,
    is_guinterleave=False,
    gate_up: bool = False,
    pad_k_to: int = 0,
) -> torch.Tensor:
    if is_guinterleave or gate_up or pad_k_to:
        raise NotImplementedError("the emulator shuffles without interleaving and padding")
    return shuffle.shuffle_weight(x, layout, use_int4)
