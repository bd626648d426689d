"""The custom all-reduce that adds a residual, norms, and rounds to float8, by rows or by groups of a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import all_reduce, dynamic_quant, machine
from .checks import check_aligned, check_apart, check_contiguous, check_dtype, check_shape, detect_unless, refuse_unless
from .norm import HALVES
from .quant import largest

# Threads of a wave, those whose sums are added at once, and the most that norm a row.
_WAVE, _WARP, _MOST_THREADS = 64, 32, 1024


@dataclass(frozen=True)
class Buffer:
    """The group, its registered buffer and that buffer's bytes, and whether one kernel does it all."""

    group: int
    address: int
    num_bytes: int
    one_stage: bool


def of_rows(
    buffer: Buffer,
    inp: Tensor,
    res_inp: Tensor,
    res_out: Tensor,
    out: Tensor,
    scale_out: Tensor,
    w: Tensor,
    eps: float,
    gemma: bool,
    plain_out: int,
) -> None:
    """Writes ``res_out = sum of inp + res_inp``, and the norm of it as codes with a scale ``[T, 1]`` for each row."""
    refuse_unless(inp.shape[-1] == w.numel(), "fused allreduce rmsnorm quant requires input width == weight width")
    _check_row(buffer, inp, "fused allreduce rmsnorm")
    normed = _summed_and_normed(buffer, inp, res_inp, res_out, out, w, eps, gemma, plain_out)
    check_shape("scale_out", scale_out, inp.shape[0], 1)
    _write(out, scale_out, normed, inp.shape[-1], by_column=False)


def of_groups(
    buffer: Buffer,
    inp: Tensor,
    res_inp: Tensor,
    res_out: Tensor,
    out: Tensor,
    scale_out: Tensor,
    w: Tensor,
    eps: float,
    group_size: int,
    plain_out: int,
    by_column: bool,
) -> None:
    """As `of_rows`, with scales ``[T, groups]``, which are stored group after group if `by_column`."""
    width, per_thread = inp.shape[-1], 16 // inp.itemsize
    refuse_unless(group_size > 0, f"per-group quant requires group_size > 0, got group_size={group_size}")
    refuse_unless(group_size % per_thread == 0, f"requires group_size divisible by PACK_SIZE={per_thread}")
    threads = group_size // per_thread
    refuse_unless(threads & (threads - 1) == 0, "requires group_size/PACK_SIZE to be a power of two")
    refuse_unless(threads <= _WAVE, "requires group_size/PACK_SIZE <= wavefront size (64)")
    refuse_unless(width % group_size == 0, f"requires n divisible by group_size, n={width} group_size={group_size}")
    _check_row(buffer, inp, "fused allreduce rmsnorm per-group quant")
    normed = _summed_and_normed(buffer, inp, res_inp, res_out, out, w, eps, False, plain_out)
    check_shape("scale_out", scale_out, inp.shape[0], width // group_size)
    _write(out, scale_out, normed, group_size, by_column)


def _check_row(buffer: Buffer, inp: Tensor, name: str) -> None:
    size, packs = all_reduce.size_of(buffer.group), inp.shape[-1] * inp.itemsize // 16
    refuse_unless(inp.dtype in HALVES, f"{name} quant only supports float16 and bfloat16")
    refuse_unless(size in (2, 4, 8), f"{name}: unsupported world_size={size}")
    whole = inp.shape[-1] * inp.itemsize % 16 == 0 and packs <= _MOST_THREADS
    detect_unless(whole, f"n={inp.shape[-1]} not supported: it is printed, and nothing is written")
    if not buffer.one_stage:
        detect_unless(packs % size == 0, f"{packs} packs are not cut among {size} ranks")
        detect_unless(packs % _WARP == 0, f"{packs} threads of a row are no whole warps, which add up by shuffles")
    detect_unless(not buffer.one_stage or inp.nbytes <= 128 * 1024, "one stage is tuned for 128 KiB at most")


def _summed_and_normed(
    buffer: Buffer,
    inp: Tensor,
    res_inp: Tensor,
    res_out: Tensor,
    out: Tensor,
    w: Tensor,
    eps: float,
    gemma: bool,
    plain_out: int,
) -> Tensor:
    """The norm in float32."""
    detect_unless(plain_out == 0, "the emulator writes no second output")
    check_dtype("w", w, inp.dtype)
    check_shape("w", w, inp.shape[-1])
    check_contiguous("w", w)
    for name, tensor in {"res_inp": res_inp, "res_out": res_out}.items():
        check_dtype(name, tensor, inp.dtype)
        check_shape(name, tensor, *inp.shape)
    check_dtype("out", out, machine.fp8())
    check_shape("out", out, *inp.shape)
    for name, tensor in {"res_inp": res_inp, "res_out": res_out, "out": out, "w": w}.items():
        check_contiguous(name, tensor)
        check_aligned(name, tensor, 8 if tensor is out else 16)
    check_apart(res_out=res_out, inp=inp, res_inp=res_inp)
    summed = all_reduce.summed_over(
        buffer.group, inp, buffer.address, buffer.num_bytes, "fused_allreduce_rmsnorm_quant"
    )
    total = summed.to(inp.dtype).float().view(inp.shape) + res_inp.float()
    res_out.copy_(total)
    # Two stages norm what they have stored, one stage what it stores.
    total = total if buffer.one_stage else res_out.float()
    scaled = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
    return scaled * (w.float() + 1 if gemma else w.float())


def _write(out: Tensor, scale_out: Tensor, normed: Tensor, group: int, by_column: bool) -> None:
    check_dtype("scale_out", scale_out, torch.float32)
    check_contiguous("scale_out", scale_out)
    parts = normed.unflatten(1, (-1, group))
    most = parts.abs().amax(-1, keepdim=True)
    scale = torch.where(most == 0, 1.0, most / largest(out.dtype))
    out.view(torch.uint8).copy_((parts / scale).flatten(1).to(out.dtype).view(torch.uint8))
    scales = scale.squeeze(-1)
    scale_out.copy_(scales.t().contiguous().view(scales.shape) if by_column else scales)
    if by_column:
        dynamic_quant.store_by_column(scale_out)
