"""Weights in blocks as GGUF files hold them: 32 or 256 neighboring numbers of a row, beside their scales.

The blocks are those of ggml, https://github.com/ggml-org/ggml (``ggml-common.h``). Codes go into parts as they are; a
product of two scales is float32, and rounded as the gguf library rounds it, so that no number changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from atom_kernels.formats import Integers, Offset, WeightFormat, pack_nibbles
from atom_models.checkpoint.gguf_file import TENSOR_TYPES
from atom_models.quantization.layouts.stored import ExpectedWeight, check_scales

Parts = dict[str, torch.Tensor]
# Finite as a scale, and codes of all formats: what random models have.
_DUMMY_BYTE = 0x11


@dataclass(frozen=True)
class GGUFLayout:
    """``weight`` as the bytes of its blocks, uint8 ``[N, bytes of a row]``.

    Attributes:
        type_name: as GGUF calls it, one of `GGUF_PACKED`.
    """

    type_name: str
    ignored: tuple[str, ...] = ()
    input_format = None

    @property
    def name(self) -> str:
        return self.type_name

    @property
    def weight_format(self) -> WeightFormat:
        return _KINDS[self.type_name].weight_format

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        block, num_bytes = _SIZES[self.type_name]
        shape = (num_rows, num_columns // block * num_bytes)
        return {"weight": ExpectedWeight(shape, torch.uint8, dummy=_DUMMY_BYTE)}

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> Parts:
        kind, num_bytes = _KINDS[self.type_name], _SIZES[self.type_name][1]
        parts = kind.unpack(tensors["weight"].reshape(-1, num_bytes))
        for name in parts.keys() - {"weight"}:
            check_scales(self.name, parts[name])
        return {name: part.reshape(num_rows, -1) for name, part in parts.items()}


class _Kind(NamedTuple):
    """The format of a type's numbers, and what makes its parts of bytes [blocks, bytes of a block]."""

    weight_format: Integers
    unpack: Callable[[torch.Tensor], Parts]


def _q8_0(blocks: torch.Tensor) -> Parts:
    return {"weight": blocks[:, 2:].view(torch.int8), "scale": _halves(blocks, 0)}


def _q4_0(blocks: torch.Tensor) -> Parts:
    return {"weight": _pack_halves(blocks[:, 2:]), "scale": _halves(blocks, 0)}


def _q4_1(blocks: torch.Tensor) -> Parts:
    return {"weight": _pack_halves(blocks[:, 4:]), "scale": _halves(blocks, 0), "minimum": _halves(blocks, 2)}


def _q5_0(blocks: torch.Tensor) -> Parts:
    codes = _unpack_halves(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return {"weight": codes.view(torch.int8) - 16, "scale": _halves(blocks, 0)}


def _q5_1(blocks: torch.Tensor) -> Parts:
    codes = _unpack_halves(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return {"weight": codes.view(torch.int8), "scale": _halves(blocks, 0), "minimum": _halves(blocks, 2)}


def _q4_k(blocks: torch.Tensor) -> Parts:
    codes = _unpack_halves(blocks[:, 16:].unflatten(1, (4, 32)))
    return {"weight": pack_nibbles(codes.flatten(1)), **_scales_and_minima(blocks)}


def _q5_k(blocks: torch.Tensor) -> Parts:
    low = _unpack_halves(blocks[:, 48:].unflatten(1, (4, 32))).unflatten(2, (2, 32)).flatten(1, 2)
    fifth = blocks[:, None, 16:48] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1
    return {"weight": (low | fifth << 4).flatten(1).view(torch.int8), **_scales_and_minima(blocks)}


def _q6_k(blocks: torch.Tensor) -> Parts:
    low = _unpack_halves(blocks[:, :128].unflatten(1, (2, 64))).unflatten(2, (4, 32))
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)
    high = blocks[:, 128:192].unflatten(1, (2, 1, 32)) >> shifts[:, None] & 3
    scale = blocks[:, 192:208].contiguous().view(torch.int8).float() * _halves(blocks, 208).float()
    return {"weight": (low | high << 4).flatten(1).view(torch.int8) - 32, "scale": scale}


def _scales_and_minima(blocks: torch.Tensor) -> Parts:
    """Eight of six bits each, behind the two numbers that they are multiplied by."""
    low_scales, low_minima, rest = blocks[:, 4:16].unflatten(1, (3, 4)).unbind(1)
    scales = torch.cat((low_scales & 63, rest & 15 | low_scales >> 2 & 48), dim=1)
    minima = torch.cat((low_minima & 63, rest >> 4 | low_minima >> 2 & 48), dim=1)
    # The minimum is subtracted from codes, and added here.
    minimum = minima.float().mul_(_halves(blocks, 2).float()).neg_()
    return {"scale": scales.float().mul_(_halves(blocks, 0).float()), "minimum": minimum}


def _fifth_bits(words: torch.Tensor) -> torch.Tensor:
    """The fifth bits of 32 codes, from four bytes."""
    return (words[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(1) << 4


def _halves(blocks: torch.Tensor, start: int) -> torch.Tensor:
    """The float16 at a byte of each block, as a column."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16)


def _unpack_halves(codes: torch.Tensor) -> torch.Tensor:
    """Low halves of the bytes first, then the high ones."""
    return torch.cat((codes & 15, codes >> 4), dim=-1)


def _pack_halves(codes: torch.Tensor) -> torch.Tensor:
    return pack_nibbles(_unpack_halves(codes))


_KINDS = {
    "Q8_0": _Kind(Integers(8, 32, scale_dtype=torch.float16), _q8_0),
    "Q4_0": _Kind(Integers(4, 32, scale_dtype=torch.float16), _q4_0),
    "Q4_1": _Kind(Integers(4, 32, Offset.MINIMUM, torch.float16), _q4_1),
    "Q5_0": _Kind(Integers(8, 32, scale_dtype=torch.float16), _q5_0),
    "Q5_1": _Kind(Integers(8, 32, Offset.MINIMUM, torch.float16), _q5_1),
    "Q4_K": _Kind(Integers(4, 32, Offset.MINIMUM), _q4_k),
    "Q5_K": _Kind(Integers(8, 32, Offset.MINIMUM), _q5_k),
    "Q6_K": _Kind(Integers(8, 16), _q6_k),
}
_SIZES = {name: (block, num_bytes) for name, block, num_bytes in TENSOR_TYPES.values() if name in _KINDS}
# The types whose numbers linears can hold packed.
GGUF_PACKED = frozenset(_KINDS)
