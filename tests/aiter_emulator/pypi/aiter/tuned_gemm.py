"""The tuned GEMM, as a function and as a method of `tgemm`."""

import torch
from torch import Tensor

from tests.aiter_emulator.semantics import gemm
from tests.aiter_emulator.semantics.binding import emulated


@emulated
def gemm_a16w16(
    A: Tensor,
    B: Tensor,
    bias: Tensor | None = None,
    otype: torch.dtype | None = None,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    scale_c: Tensor | None = None,
) -> Tensor:
    return gemm.gemm_a16w16(A, B, bias, otype, scale_a, scale_b, scale_c)


class TunedGemm:
    def mm(
        self,
        inp: Tensor,
        weights: Tensor,
        bias: Tensor | None = None,
        otype: torch.dtype | None = None,
        scale_a: Tensor | None = None,
        scale_b: Tensor | None = None,
        scale_c: Tensor | None = None,
    ):
        return gemm_a16w16(inp, weights, bias, otype, scale_a, scale_b, scale_c)


tgemm = TunedGemm()
