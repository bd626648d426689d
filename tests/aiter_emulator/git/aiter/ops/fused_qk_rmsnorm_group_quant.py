"""The two norms of MLA in one kernel."""

from torch import Tensor

from tests.aiter_emulator.semantics import norm
from tests.aiter_emulator.semantics.binding import emulated

from .enum import QuantType


@emulated
def fused_qk_rmsnorm(
    q_out_quantized: Tensor | None = None,
    q_out_scale: Tensor | None = None,
    q: Tensor | None = None,
    q_weight: Tensor | None = None,
    q_epsilon: float = 1e-06,
    q_out_unquantized: Tensor | None = None,
    k_out: Tensor | None = None,
    q_res_out: Tensor | None = None,
    k: Tensor | None = None,
    k_weight: Tensor | None = None,
    k_epsilon: float | None = None,
    q_residual: Tensor | None = None,
    gemma_norm: bool = False,
    quant_type: QuantType | None = QuantType.No,
    group_size: int | None = None,
    transpose_scale: bool = False,
) -> None:
    if quant_type != QuantType.No or q_out_quantized is not None or q_out_scale is not None:
        raise NotImplementedError("the emulator has the norms without quantization")
    if q_out_unquantized is None:
        raise ValueError("q_out_unquantized must be provided without quantization")
    norm.fused_qk_rmsnorm(
        q, q_weight, q_epsilon, q_out_unquantized, k, k_weight, k_epsilon, k_out, q_residual, q_res_out, gemma_norm
    )
