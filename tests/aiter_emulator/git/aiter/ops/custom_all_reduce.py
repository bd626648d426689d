"""Sums over ranks, by addresses of memory that each process has opened."""

from torch import Tensor

from tests.aiter_emulator.semantics import all_reduce as sums
from tests.aiter_emulator.semantics import rounded_all_reduce as rounded

from ..jit.core import compile_ops


@compile_ops("module_custom_all_reduce")
def init_custom_ar(
    meta_ptr: int,
    rank_data_ptr: int,
    rank_data_sz: int,
    ipc_handle_ptrs: list[int],
    offsets: list[int],
    rank: int,
    fully_connected: bool,
) -> int:
    return sums.begin(meta_ptr, rank_data_sz, ipc_handle_ptrs, offsets, rank, fully_connected)


@compile_ops("module_custom_all_reduce")
def all_reduce(
    _fa: int,
    inp: Tensor,
    out: Tensor,
    use_new: bool,
    open_fp8_quant: bool,
    reg_inp_ptr: int,
    reg_inp_bytes: int,
) -> None:
    sums.all_reduce(_fa, inp, out, open_fp8_quant, reg_inp_ptr, reg_inp_bytes)


@compile_ops("module_custom_all_reduce")
def fused_allreduce_rmsnorm(
    _fa: int,
    inp: Tensor,
    res_inp: Tensor,
    res_out: Tensor,
    out: Tensor,
    w: Tensor,
    eps: float,
    reg_ptr: int,
    reg_bytes: int,
    use_1stage: bool,
    gemma_norm: bool = False,
) -> None:
    sums.fused_rms_norm(_fa, inp, res_inp, res_out, out, w, eps, reg_ptr, reg_bytes, use_1stage, gemma_norm)


@compile_ops("module_custom_all_reduce")
def fused_allreduce_rmsnorm_quant(
    _fa: int,
    inp: Tensor,
    res_inp: Tensor,
    res_out: Tensor,
    out: Tensor,
    scale_out: Tensor,
    w: Tensor,
    eps: float,
    reg_ptr: int,
    reg_bytes: int,
    use_1stage: bool,
    gemma_norm: bool = False,
    bf16_out_ptr: int = 0,
) -> None:
    buffer = rounded.Buffer(_fa, reg_ptr, reg_bytes, use_1stage)
    rounded.of_rows(buffer, inp, res_inp, res_out, out, scale_out, w, eps, gemma_norm, bf16_out_ptr)


@compile_ops("module_custom_all_reduce")
def fused_allreduce_rmsnorm_quant_per_group(
    _fa: int,
    inp: Tensor,
    res_inp: Tensor,
    res_out: Tensor,
    out: Tensor,
    scale_out: Tensor,
    w: Tensor,
    eps: float,
    group_size: int,
    reg_ptr: int,
    reg_bytes: int,
    use_1stage: bool,
    bf16_out_ptr: int = 0,
    transpose_scale: bool = False,
) -> None:
    buffer = rounded.Buffer(_fa, reg_ptr, reg_bytes, use_1stage)
    rounded.of_groups(buffer, inp, res_inp, res_out, out, scale_out, w, eps, group_size, bf16_out_ptr, transpose_scale)


@compile_ops("module_custom_all_reduce")
def meta_size() -> int:
    return sums.FLAG_BYTES


@compile_ops("module_custom_all_reduce")
def register_input_buffer(_fa: int, self_ptr: int, ipc_handle_ptrs: list[int], offsets: list[int]) -> None:
    sums.register(_fa, self_ptr, ipc_handle_ptrs, offsets)


@compile_ops("module_custom_all_reduce")
def allocate_meta_buffer(size: int) -> int:
    return sums.allocate(size)


@compile_ops("module_custom_all_reduce")
def get_meta_buffer_ipc_handle(inp_ptr: int, out_handle_ptr: int) -> None:
    sums.write_handle(inp_ptr, out_handle_ptr)
