"""Quantizers in plain torch, and those in HIP."""

import functools

import torch
from torch import Tensor

from tests.aiter_emulator.semantics import dynamic_quant, quant
from tests.aiter_emulator.semantics.binding import emulated
from tests.aiter_emulator.semantics.quant import per_tensor_quant as per_tensor_quant
from tests.aiter_emulator.semantics.quant import pertoken_quant as pertoken_quant

from ..utility import dtypes


@functools.lru_cache
def get_torch_quant(qType):
    return quant.torch_quant(qType.name)


@emulated
def per_token_quant_hip(
    x: Tensor,
    scale: Tensor | None = None,
    quant_dtype: torch.dtype = dtypes.i8,
    num_rows: Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[Tensor, Tensor]:
    return dynamic_quant.per_token(x, scale, quant_dtype, num_rows)


@emulated
def per_group_quant_hip(
    x: Tensor,
    scale: Tensor | None = None,
    quant_dtype: torch.dtype = dtypes.i8,
    group_size: int = 128,
    transpose_scale: bool = False,
    num_rows: Tensor | None = None,
    num_rows_factor: int = 1,
) -> tuple[Tensor, Tensor]:
    return dynamic_quant.per_group(x, scale, quant_dtype, group_size, transpose_scale, num_rows)


@emulated
def per_1x32_f4_quant_hip(
    x,
    scale=None,
    quant_dtype=dtypes.fp4x2,
    shuffle=False,
    num_rows: Tensor | None = None,
    num_rows_factor=1,
):
    return dynamic_quant.per_1x32_fp4(x, scale, quant_dtype, shuffle, num_rows)
