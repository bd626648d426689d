"""Orders of weights."""

import torch

from tests.aiter_emulator.semantics import shuffle
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def shuffle_weight(x: torch.Tensor, layout=(16, 16), use_int4=False) -> torch.Tensor:
    return shuffle.shuffle_weight(x, layout, use_int4)
