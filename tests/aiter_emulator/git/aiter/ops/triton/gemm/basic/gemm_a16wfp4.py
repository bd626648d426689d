"""The product of MXFP4 weights in Triton, whose kernel rounds rows."""

import torch

from tests.aiter_emulator.semantics import mxfp4_rows
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def gemm_a16wfp4(
    x: torch.Tensor,
    w: torch.Tensor,
    w_scales: torch.Tensor,
    atomic_add: bool | None = False,
    dtype: torch.dtype | None = torch.bfloat16,
    y: torch.Tensor | None = None,
    config: dict | None = None,
) -> torch.Tensor:
    if atomic_add or config is not None:
        raise NotImplementedError("the emulator has this product with the tiles of its own table, and no atomic sums")
    return mxfp4_rows.gemm_a16wfp4(x, w, w_scales, dtype, y)
