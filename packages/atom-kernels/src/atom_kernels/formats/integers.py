"""Weights of eight or four bits as integers, with a scale for each row or group, and perhaps an offset."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from atom_kernels.formats.codes import Codes
from atom_kernels.formats.nibbles import pack_nibbles
from atom_kernels.formats.tiles import largest_of_tiles, smallest_and_largest
from atom_kernels.formats.weight_format import Part, WeightFormat, dequantized, spread


class Offset(StrEnum):
    """Where the numbers of a group lie.

    NONE: around zero; the code of four bits that stands for zero is 8.
    ZERO_POINT: ``(code - zero_point) * scale``, with a zero point of eight bits for each group.
    MINIMUM: ``code * scale + minimum``.
    """

    NONE = "none"
    ZERO_POINT = "zero point"
    MINIMUM = "minimum"


@dataclass(frozen=True)
class Integers:
    """``code * scale`` with signed codes of eight bits, or unsigned ones of four (packed by `pack_nibbles`).

    Codes of eight bits beside a minimum are 0 to 127.

    Attributes:
        bits: 8 or 4.
        group: inputs that share a scale; None is a whole row.
        offset: codes of four bits may have any, those of eight a minimum.
        scale_dtype: the dtype of scales and minima.
    """

    bits: int
    group: int | None = None
    offset: Offset = Offset.NONE
    scale_dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise ValueError(f"integer weights have 4 or 8 bits here, not {self.bits}")
        if self.bits == 8 and self.offset is Offset.ZERO_POINT:
            raise ValueError("integer weights of 8 bits have no zero point here")

    @property
    def name(self) -> str:
        group = "row" if self.group is None else f"{self.group}"
        offset = "" if self.offset is Offset.NONE else f" with {self.offset}"
        return f"int{self.bits} per {group}{offset}"

    @property
    def codes(self) -> Codes:
        return Codes.INT8 if self.bits == 8 else Codes.INT4

    @property
    def parts(self) -> Mapping[str, Part]:
        codes = Part(torch.int8, is_scale=False) if self.bits == 8 else Part(torch.uint8, columns=2, is_scale=False)
        parts = {"weight": codes, "scale": Part(self.scale_dtype, columns=self.group)}
        if self.offset is Offset.ZERO_POINT:
            parts["zero_point"] = Part(torch.uint8, columns=self.group)
        elif self.offset is Offset.MINIMUM:
            parts["minimum"] = Part(self.scale_dtype, columns=self.group)
        return parts

    def scales(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return tensors["scale"]

    def dequantize(self, tensors: Mapping[str, torch.Tensor], num_columns: int) -> torch.Tensor:
        return dequantized(self, tensors)

    def quantize(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        scale_part = self.parts["scale"]
        shape = weight.shape[-2:]
        if self.offset is Offset.NONE:
            # The codes are -8 to 7: half a step more than 7 is used, which rounds less than leaving -8 out.
            steps = 127.0 if self.bits == 8 else 7.5
            scale = _divisor(largest_of_tiles(weight, scale_part) / steps, self.scale_dtype)
            codes = (weight.float() / spread(scale.float(), scale_part, *shape)).round_()
            if self.bits == 8:
                return {"weight": codes.clamp_(-127, 127).to(torch.int8), "scale": scale}
            return {"weight": pack_nibbles(codes.clamp_(-8, 7).add_(8).to(torch.uint8)), "scale": scale}
        smallest, largest = smallest_and_largest(weight, scale_part)
        if self.offset is Offset.MINIMUM:
            second, offset = "minimum", smallest.to(self.scale_dtype)
            scale = _divisor((largest - smallest) / self._most, self.scale_dtype)
            moved = weight.float() - spread(offset.float(), scale_part, *shape)
            codes = (moved / spread(scale.float(), scale_part, *shape)).round_()
        else:
            # The zero point is a code, so zero lies among the numbers.
            smallest, largest = smallest.clamp_(max=0), largest.clamp_(min=0)
            scale = _divisor((largest - smallest) / 15, self.scale_dtype)
            second, offset = "zero_point", (-smallest / scale.float()).round_().clamp_(0, 15).to(torch.uint8)
            codes = (weight.float() / spread(scale.float(), scale_part, *shape)).round_()
            codes += spread(offset.float(), scale_part, *shape)
        codes = codes.clamp_(0, self._most)
        packed = codes.to(torch.int8) if self.bits == 8 else pack_nibbles(codes.to(torch.uint8))
        return {"weight": packed, "scale": scale, second: offset}

    @property
    def _most(self) -> int:
        """The largest code beside an offset."""
        return 127 if self.bits == 8 else 15

    def with_tiles(self, rows: int, columns: int | None) -> WeightFormat:
        return replace(self, group=columns)


def _divisor(scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The scale as it is stored; 1 where it would be zero, and all codes are zero."""
    stored = scale.to(dtype)
    return torch.where(stored > 0, stored, torch.ones_like(stored))
