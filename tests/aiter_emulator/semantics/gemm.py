"""Matrix products of 16-bit weights: the tuned GEMM and the batched one of MLA."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import machine
from .checks import check_contiguous, check_dtype, check_shape, detect_unless, refuse_unless
from .shuffle import require_plain, require_shuffled, unshuffled

HALVES = (torch.float16, torch.bfloat16)


def gemm_a16w16(
    A: Tensor,
    B: Tensor,
    bias: Tensor | None,
    otype: torch.dtype | None,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    scale_c: Tensor | None,
) -> Tensor:
    """``A @ B.T + bias`` of ``A [..., K]`` and ``B [N, K]``, as `otype` or A's dtype."""
    refuse_unless(A.dim() >= 2 and B.dim() == 2, f"{A.dim()}-D times {B.dim()}-D")
    refuse_unless(A.shape[-1] == B.shape[1], f"A has {A.shape[-1]} columns, B {B.shape[1]}")
    refuse_unless(A.dtype == B.dtype, f"A is {A.dtype}, B {B.dtype}")
    refuse_unless(scale_c is None, "scale_c is of no kernel here")
    out_dtype = otype or A.dtype
    if bias is not None:
        refuse_unless(bias.shape == B.shape[:1], f"bias {tuple(bias.shape)} for {B.shape[0]} columns")
        refuse_unless(bias.dtype in (A.dtype, out_dtype), f"bias is {bias.dtype}, A {A.dtype}")
    weight = _read_weight(A, B, out_dtype)
    product = F.linear(A.float(), weight.float())
    if A.dtype == machine.fp8():
        product = product * _scale("scale_a", scale_a) * _scale("scale_b", scale_b)
    else:
        detect_unless(scale_a is None and scale_b is None, f"the scales of {A.dtype} operands are ignored")
    product = product if bias is None else product + bias.float()
    # Only the kernels for shuffled weights and fp8 store `otype`; the others round to their operands' dtype first.
    return (product if weight is not B or A.dtype == machine.fp8() else product.to(A.dtype)).to(out_dtype)


def batched_gemm_bf16_CK(XQ: Tensor, WQ: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """``[B, M, K] x [B, N, K] -> [B, M, N]``; strides and bias are not looked at."""
    assert dtype in HALVES, f"output {dtype} is not supported"
    refuse_unless(XQ.dtype == WQ.dtype == torch.bfloat16, "weights and activations should both be bf16")
    detect_unless(dtype == torch.bfloat16, "the kernel stores bf16, whatever the output is")
    detect_unless(bias is None, "bias is ignored")
    _check_batches(XQ, WQ)
    check_contiguous("XQ", XQ)
    check_contiguous("WQ", WQ)
    require_plain("WQ", WQ)
    return torch.bmm(XQ.float(), WQ.float().transpose(1, 2)).to(dtype)


def batched_gemm_bf16_triton(
    XQ: Tensor, WQ: Tensor, bias: Tensor | None, dtype: torch.dtype, splitK: int | None, YQ: Tensor | None
) -> Tensor:
    """The same in Triton: operands are made contiguous, `bias` is ``[B, 1, N]``, `YQ` is written if given."""
    assert XQ.shape[0] == WQ.shape[0], "Incompatible Batch dimensions"
    assert XQ.shape[2] == WQ.shape[2], "Incompatible K dimensions"
    assert dtype in HALVES, f"output {dtype} is not supported"
    assert splitK is None, "splitK is not supported"
    require_plain("WQ", WQ)
    product = torch.bmm(XQ.contiguous().float(), WQ.contiguous().float().transpose(1, 2))
    if bias is not None:
        check_shape("bias", bias, XQ.shape[0], 1, WQ.shape[1])
        check_contiguous("bias", bias)
        product = product + bias.float()
    if YQ is None:
        return product.to(dtype)
    check_shape("YQ", YQ, *product.shape)
    check_dtype("YQ", YQ, dtype)
    return YQ.copy_(product)


def _read_weight(A: Tensor, B: Tensor, out_dtype: torch.dtype) -> Tensor:
    """B in plain order. Only git looks whether it is shuffled, and then at the attribute, which copies lack."""
    if machine.release() == "pypi" or getattr(B, "is_shuffled", False) is not True:
        require_plain("B", B)
        if machine.release() == "git" and _takes_skinny_kernel(A, B):
            check_contiguous("A", A)
            check_contiguous("B", B)
        return B
    if machine.arch() == "gfx950":
        solved = A.dtype == torch.bfloat16 and out_dtype in (torch.bfloat16, torch.float32)
        assert solved, f"no solution for a shuffled weight, {A.dtype} to {out_dtype}"
        assert B.shape[0] % 64 == B.shape[1] % 64 == 0, f"no solution for a shuffled weight of {tuple(B.shape)}"
    require_shuffled("B", B)
    return unshuffled(B)


def _takes_skinny_kernel(A: Tensor, B: Tensor) -> bool:
    """Few rows: hand-written kernels that read bare pointers."""
    rows, (columns, depth), units = A.shape[:-1].numel(), B.shape, machine.cu_num()
    if A.dtype not in HALVES or depth % 8:
        return False
    if rows <= 4:
        return depth <= 9216 and columns <= (2 * units if rows == 1 else units)
    return columns <= units and (depth <= 5120 if rows <= 8 else rows <= 16 and depth <= 256)


def _scale(name: str, scale: Tensor | None) -> Tensor | float:
    if scale is None:
        return 1.0
    check_dtype(name, scale, torch.float32)
    detect_unless(scale.numel() == 1, f"{name} is per tensor")
    return scale


def _check_batches(XQ: Tensor, WQ: Tensor) -> None:
    check_shape("XQ", XQ, None, None, None)
    check_shape("WQ", WQ, XQ.shape[0], None, XQ.shape[2])
