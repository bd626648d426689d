"""MXFP4 as AITER has it: codes of four bits, scales that are exponents, and the order in which kernels read the scales.

The emulator knows the content of every matrix of scales that was put in order, as `shuffle` does with weights.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from .checks import detect_unless

BLOCK = 32
_CODES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_ROWS, _COLUMNS = 256, 8

_shuffled: set[bytes] = set()


def fp4x2() -> torch.dtype:
    """The type of two codes in a byte, where torch has it."""
    return getattr(torch, "float4_e2m1fn_x2", torch.uint8)


def decode(packed: Tensor) -> Tensor:
    """float32 of bytes ``[M, K / 2]``, the first column in the low half."""
    data = packed.view(torch.uint8)
    codes = torch.stack((data & 15, data >> 4), -1).reshape(*data.shape[:-1], -1).long()
    return torch.where(codes >= 8, -1.0, 1.0) * _CODES[codes % 8]


def encode(values: Tensor) -> Tensor:
    """The nearest codes of float32 ``[M, K]``; of two that are as near, the even one. Larger numbers saturate."""
    distance = (values.abs().unsqueeze(-1) - _CODES).abs()
    odd = torch.arange(8) % 2
    nearest = (distance.amin(-1, keepdim=True) == distance) * (2 - odd)
    codes = nearest.argmax(-1) + 8 * torch.signbit(values)
    return (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)


def encode_halves_up(values: Tensor) -> Tensor:
    """The same, but of two codes that are as near the larger one."""
    middles = (_CODES[1:] + _CODES[:-1]) / 2
    codes = torch.bucketize(values.abs().contiguous(), middles, right=True) + 8 * torch.signbit(values)
    return (codes[..., ::2] + 16 * codes[..., 1::2]).to(torch.uint8)


def exponents_as_numbers(scale: Tensor) -> Tensor:
    """``2 ** (byte - 127)``; byte 0 is the smallest, 255 is no number."""
    data = scale.view(torch.uint8).double()
    return torch.where(data == 255, torch.nan, torch.exp2(data - 127)).float()


def in_order(scale: Tensor) -> Tensor:
    """``[M, K / 32]`` filled up to 256 rows and 8 columns, tiles of 32 x 8 after each other. What fills is garbage."""
    rows, columns = scale.shape
    high, wide = -(-rows // _ROWS) * _ROWS, -(-columns // _COLUMNS) * _COLUMNS
    filled = torch.full((high, wide), 0xAB, dtype=torch.uint8)
    filled[:rows, :columns] = scale.view(torch.uint8)
    tiles = filled.view(high // 32, 2, 16, wide // 8, 2, 4).permute(0, 3, 5, 2, 4, 1)
    ordered = tiles.contiguous().view(high, wide)
    _shuffled.add(_digest(ordered))
    return ordered.view(scale.dtype)


def out_of_order(scale: Tensor, rows: int, columns: int) -> Tensor:
    """Bytes ``[rows, columns]`` of what `in_order` made."""
    high, wide = scale.shape
    tiles = scale.contiguous().view(torch.uint8).view(high // 32, wide // 8, 4, 16, 2, 2).permute(0, 5, 3, 1, 4, 2)
    return tiles.contiguous().view(high, wide)[:rows, :columns]


def read_scales(name: str, scale: Tensor, rows: int, columns: int) -> Tensor:
    """The numbers ``[rows, columns]`` of scales as the kernels read them: in order, of whole tiles."""
    detect_unless(scale.element_size() == 1, f"{name} is {scale.dtype}, the kernel reads exponents of one byte")
    detect_unless(scale.dim() == 2 and scale.is_contiguous(), f"{name} has shape {tuple(scale.shape)} with holes")
    high, wide = -(-rows // _ROWS) * _ROWS, -(-columns // _COLUMNS) * _COLUMNS
    fits = scale.shape[0] >= high and scale.shape[0] % 32 == 0 and scale.shape[1] == wide
    detect_unless(fits, f"{name} has shape {tuple(scale.shape)}, the kernel reads [{high}, {wide}]")
    known = _digest(scale.view(torch.uint8)) in _shuffled
    detect_unless(known, f"{name} was not put in order by e8m0_shuffle or a quantizer with shuffle=True")
    return exponents_as_numbers(out_of_order(scale, rows, columns))


def spread(scale: Tensor) -> Tensor:
    """A scale for each column."""
    return scale.repeat_interleave(BLOCK, dim=-1)


def _digest(data: Tensor) -> bytes:
    return hashlib.blake2b(data.contiguous().numpy().tobytes(), digest_size=16).digest()
