"""How far a result in a dtype may be from the same operation in float32, rounded once."""

from __future__ import annotations

import torch

from atom_kernels.operator import Tolerance

# Some units in the last place: one rounding at the end, and sums in another order.
_TOLERANCES = {
    torch.float32: Tolerance(atol=1e-5, rtol=1e-5),
    torch.float16: Tolerance(atol=2e-3, rtol=2e-3),
    torch.bfloat16: Tolerance(atol=1e-2, rtol=1.6e-2),
}


def elementwise_tolerance(dtype: torch.dtype) -> Tolerance:
    """The tolerance for values of order one."""
    return _TOLERANCES[dtype]
