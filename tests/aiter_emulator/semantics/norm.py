"""RMSNorm and LayerNorm: float32 inside, rounded once at the end."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from . import dynamic_quant, machine
from .checks import (
    check_aligned,
    check_apart,
    check_contiguous,
    check_dtype,
    check_rows,
    check_shape,
    detect_unless,
    refuse_unless,
)

HALVES = (torch.float16, torch.bfloat16)


def rms_norm(input: Tensor, weight: Tensor, epsilon: float, use_model_sensitive_rmsnorm: int) -> Tensor:
    """A new tensor; `use_model_sensitive_rmsnorm=1` rounds before the weight, as T5 does."""
    _check_rows_and_weight("rmsnorm", input, weight)
    return _normed(input.float(), weight, epsilon, use_model_sensitive_rmsnorm, False, input.dtype)


def rms_norm_with_add(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    weight: Tensor,
    epsilon: float,
    gemma_norm: bool,
    use_model_sensitive_rmsnorm: int,
) -> None:
    """Writes ``residual_out = input + residual_in`` and ``out = rms_norm(residual_out)``."""
    _check_rows_and_weight("rmsnorm", input, weight)
    others = {"out": out, "residual_in": residual_in, "residual_out": residual_out}
    for name, tensor in others.items():
        refuse_unless(tensor.dtype == input.dtype, f"{name} is {tensor.dtype}, input {input.dtype}")
        check_shape(name, tensor, *input.shape)
        refuse_unless(tensor.is_contiguous(), f"{name} must be contiguous")
    check_apart(out=out, input=input, residual_in=residual_in, residual_out=residual_out)
    check_apart(residual_out=residual_out, input=input, residual_in=residual_in)
    total = input.float() + residual_in.float()
    residual_out.copy_(total)
    out.copy_(_normed(total, weight, epsilon, use_model_sensitive_rmsnorm, gemma_norm, input.dtype))


def rms_norm_rounded(
    out: Tensor,
    input: Tensor,
    scale: Tensor,
    weight: Tensor,
    epsilon: float,
    rounds_first: int,
    group_size: int = 0,
    shuffle_scale: bool = False,
) -> None:
    """Writes the norm in fp8 or int8 with its scales; it is rounded once, unless `rounds_first`."""
    _check_rounded_inputs(input, weight)
    check_apart(out=out, input=input)
    normed = _normed(input.float(), weight, epsilon, rounds_first, False, torch.float32)
    dynamic_quant.write_rows(out, scale, normed, group_size, shuffle_scale, longest=_longest(group_size, shuffle_scale))


def add_rms_norm_rounded(
    out: Tensor,
    input: Tensor,
    residual_in: Tensor,
    residual_out: Tensor,
    scale: Tensor,
    weight: Tensor,
    epsilon: float,
    rounds_first: int,
    group_size: int = 0,
    shuffle_scale: bool = False,
) -> None:
    """The same of ``residual_out = input + residual_in``, which is written too. The exact sum is what is normed."""
    _check_rounded_inputs(input, weight)
    for name, tensor in {"residual_in": residual_in, "residual_out": residual_out}.items():
        refuse_unless(tensor.dtype == input.dtype, f"{name} is {tensor.dtype}, input {input.dtype}")
        check_shape(name, tensor, *input.shape)
        check_contiguous(name, tensor)
    check_apart(out=out, input=input, residual_in=residual_in, residual_out=residual_out)
    check_apart(residual_out=residual_out, input=input, residual_in=residual_in)
    total = input.float() + residual_in.float()
    normed = _normed(total, weight, epsilon, rounds_first, False, torch.float32)
    dynamic_quant.write_rows(out, scale, normed, group_size, shuffle_scale, longest=_longest(group_size, shuffle_scale))
    residual_out.copy_(total)


def _longest(group_size: int, shuffle_scale: bool) -> int | None:
    """git's kernel of whole rows takes any; that of groups, and Composable Kernel's, 8192 elements."""
    return None if machine.release() == "git" and not group_size and not shuffle_scale else 8192


def _check_rounded_inputs(input: Tensor, weight: Tensor) -> None:
    _check_rows_and_weight("rmsnorm", input, weight)
    refuse_unless(input.dtype in HALVES, f"rounded norms take fp16 and bf16, not {input.dtype}")
    detect_unless(input.dim() == 2, f"the kernel takes rows of two dimensions, not {input.dim()}")
    check_contiguous("input", input)
    check_aligned("input", input, 16)


def layernorm(input: Tensor, weight: Tensor, bias: Tensor, epsilon: float, x_bias: Tensor | None) -> Tensor:
    """A new tensor; `x_bias` is added to each row first. 2-D and 16-bit only, in both releases."""
    refuse_unless(input.dtype in HALVES, f"layernorm takes fp16 and bf16, not {input.dtype}")
    _check_matrix(input)
    for name, tensor in {"weight": weight, "bias": bias, "x_bias": x_bias}.items():
        if tensor is not None:
            check_dtype(name, tensor, input.dtype)
            check_shape(name, tensor, input.shape[-1])
            check_contiguous(name, tensor)
    x = input.float() if x_bias is None else input.float() + x_bias.float()
    return F.layer_norm(x, weight.shape, weight.float(), bias.float(), epsilon).to(input.dtype)


def fused_qk_rmsnorm(
    q: Tensor,
    q_weight: Tensor,
    q_epsilon: float,
    q_out: Tensor,
    k: Tensor | None,
    k_weight: Tensor | None,
    k_epsilon: float | None,
    k_out: Tensor | None,
    q_residual: Tensor | None,
    q_res_out: Tensor | None,
    gemma_norm: bool,
) -> None:
    """MLA's two norms, without quantization: rows of q and k may be columns of one projection."""
    _check_pair("q", q, q_weight, q_out)
    check_apart(q_out_unquantized=q_out, q=q)
    total = q.float()
    if q_residual is not None:
        refuse_unless(q_res_out is not None, "q_residual needs q_res_out")
        check_shape("q_residual", q_residual, *q.shape)
        check_shape("q_res_out", q_res_out, *q.shape)
        total = total + q_residual.float()
        q_res_out.copy_(total)
    q_out.copy_(_normed(total, q_weight, q_epsilon, 0, gemma_norm, q.dtype))
    if k is not None:
        refuse_unless(k_weight is not None and k_out is not None, "k needs k_weight and k_out")
        refuse_unless(k.shape[0] == q.shape[0] and k.dtype == q.dtype, "q and k have other rows or dtypes")
        _check_pair("k", k, k_weight, k_out)
        check_apart(k_out=k_out, k=k, q=q, q_out=q_out)
        k_out.copy_(_normed(k.float(), k_weight, q_epsilon if k_epsilon is None else k_epsilon, 0, gemma_norm, k.dtype))


def _check_pair(name: str, x: Tensor, weight: Tensor, out: Tensor) -> None:
    refuse_unless(x.dtype in HALVES, f"{name} is {x.dtype}, the kernel takes fp16 and bf16")
    refuse_unless(x.dim() == 2, f"{name} has {x.dim()} dimensions, the kernel takes 2")
    refuse_unless(weight.dtype == x.dtype and out.dtype == x.dtype, f"{name}, its weight and output differ in dtype")
    check_shape(f"{name}_weight", weight, x.shape[-1])
    check_shape(f"{name}_out", out, *x.shape)
    check_rows(name, x)
    check_rows(f"{name}_out", out)
    check_contiguous(f"{name}_weight", weight)


def _check_rows_and_weight(function: str, input: Tensor, weight: Tensor) -> None:
    """git checks dtypes and takes any rank; PyPI's CK kernel takes ``stride(0)`` between all rows."""
    check_contiguous("weight", weight)
    check_shape("weight", weight, input.shape[-1])
    if machine.release() == "git":
        refuse_unless(input.dtype in (*HALVES, torch.float32), f"{function} takes fp16, bf16, fp32, not {input.dtype}")
        refuse_unless(weight.dtype == input.dtype, f"weight is {weight.dtype}, input {input.dtype}")
        return
    refuse_unless(input.dtype in HALVES, f"{function} takes fp16 and bf16, not {input.dtype}")
    check_dtype("weight", weight, input.dtype)
    _check_matrix(input)


def _check_matrix(input: Tensor) -> None:
    detect_unless(input.dim() == 2, f"the kernel takes stride(0) between all rows: 2-D only, not {input.dim()}-D")
    check_rows("input", input)


def _normed(x: Tensor, weight: Tensor, epsilon: float, rounds_first: int, gemma: bool, dtype: torch.dtype) -> Tensor:
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)
    if rounds_first:
        scaled = scaled.to(dtype).float()
    return (scaled * (weight.float() + 1 if gemma else weight.float())).to(dtype)
