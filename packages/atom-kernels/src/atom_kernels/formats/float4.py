"""Weights of four bits in floating point (e2m1), with a scale for each block of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from atom_kernels.formats.codes import E2M1_MAGNITUDES, Codes
from atom_kernels.formats.nibbles import pack_nibbles
from atom_kernels.formats.tiles import largest_of_tiles
from atom_kernels.formats.weight_format import Part, WeightFormat, dequantized, spread

E2M1_MAX = E2M1_MAGNITUDES[-1]
_MXFP4_BLOCK, _NVFP4_BLOCK = 32, 16


def encode_e2m1(values: torch.Tensor) -> torch.Tensor:
    """``float32 [..., K] -> uint8 [..., K / 2]``, to the nearest number, of two the even code; K is even."""
    magnitudes = values.abs()
    # Between codes c and c + 1 lies the middle; an even c keeps it, an odd one leaves it to c + 1.
    codes = torch.zeros_like(values, dtype=torch.uint8)
    for code, (low, high) in enumerate(pairwise(E2M1_MAGNITUDES)):
        middle = (low + high) / 2
        codes += magnitudes > middle if code % 2 == 0 else magnitudes >= middle
    return pack_nibbles(codes | values.signbit().to(torch.uint8) << 3)


def power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """float32 of e8m0 bytes: ``2 ** (byte - 127)``; 255 is NaN."""
    return exponent.view(torch.float8_e8m0fnu).float()


@dataclass(frozen=True)
class Mxfp4:
    """``e2m1 * 2 ** (scale - 127)`` with a byte of scale for 32 inputs: OCP Microscaling Formats 1.0."""

    codes: Codes = field(default=Codes.E2M1, init=False, repr=False)
    name: str = "mxfp4"

    @property
    def parts(self) -> Mapping[str, Part]:
        return {
            "weight": Part(torch.uint8, columns=2, is_scale=False),
            "scale": Part(torch.uint8, columns=_MXFP4_BLOCK),
        }

    def scales(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return power_of_two(tensors["scale"])

    def dequantize(self, tensors: Mapping[str, torch.Tensor], num_columns: int) -> torch.Tensor:
        return dequantized(self, tensors)

    def quantize(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        part = self.parts["scale"]
        scale = _even_exponent(largest_of_tiles(weight, part))
        values = weight.float() / spread(power_of_two(scale), part, *weight.shape[-2:])
        return {"weight": encode_e2m1(values), "scale": scale}

    def with_tiles(self, rows: int, columns: int | None) -> WeightFormat:
        return _with_fixed_blocks(self, columns, _MXFP4_BLOCK)


def _even_exponent(largest: torch.Tensor) -> torch.Tensor:
    """The e8m0 byte of a block: the exponent of its largest number, rounded to a mantissa of one bit, less e2m1's two.

    The "even" mode of AMD Quark. A block of zeros gets byte 0.
    """
    bits = largest.contiguous().view(torch.int32) + (1 << 21)
    return ((bits >> 23) - 2).clamp_(0, 254).to(torch.uint8)


@dataclass(frozen=True)
class Nvfp4:
    """``e2m1 * scale * tensor_scale`` with a scale in e4m3 for 16 inputs, and a float32 one for each row.

    Attributes:
        divides: the scale is divided by `tensor_scale` instead, which is the same number but for its rounding.
    """

    codes: Codes = field(default=Codes.E2M1, init=False, repr=False)
    divides: bool = False
    name: str = "nvfp4"

    @property
    def parts(self) -> Mapping[str, Part]:
        return {
            "weight": Part(torch.uint8, columns=2, is_scale=False),
            "scale": Part(torch.float8_e4m3fn, columns=_NVFP4_BLOCK),
            "tensor_scale": Part(torch.float32, columns=None),
        }

    def scales(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        block, tensor_scale = tensors["scale"].float(), tensors["tensor_scale"]
        return block / tensor_scale if self.divides else block * tensor_scale

    def dequantize(self, tensors: Mapping[str, torch.Tensor], num_columns: int) -> torch.Tensor:
        return dequantized(self, tensors)

    def quantize(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        part = self.parts["scale"]
        largest = largest_of_tiles(weight, part)
        whole = largest.amax(dim=(-2, -1), keepdim=True).clamp(min=1e-30) / (E2M1_MAX * 448.0)
        block = (largest / E2M1_MAX / whole).clamp(max=448.0).to(torch.float8_e4m3fn)
        scale = block.float() * whole
        values = weight.float() / spread(torch.where(scale > 0, scale, 1.0), part, *weight.shape[-2:])
        tensor_scale = (1 / whole if self.divides else whole).expand(*largest.shape[:-1], 1).contiguous()
        return {"weight": encode_e2m1(values), "scale": block, "tensor_scale": tensor_scale}

    def with_tiles(self, rows: int, columns: int | None) -> WeightFormat:
        return _with_fixed_blocks(self, columns, _NVFP4_BLOCK)


def _with_fixed_blocks(weight_format: WeightFormat, columns: int | None, block: int) -> WeightFormat:
    if columns != block:
        raise ValueError(f"{weight_format.name} has a scale for each {block} inputs: it cannot be cut between them")
    return weight_format
