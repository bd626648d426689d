"""Weights as integers: compressed-tensors' and bitsandbytes' of eight bits, compressed-tensors' packed ones of four."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atom_kernels.formats import Integers, Offset, WeightFormat
from atom_models.checkpoint.errors import CheckpointError
from atom_models.quantization.layouts.stored import Expected, check_scales, rows_of_scale

_SCALES = (torch.float32, torch.bfloat16, torch.float16)
# Codes in an int32.
_CODES = 8


@dataclass(frozen=True)
class Int8Layout:
    """``weight`` in int8 and a scale for each row, or for all.

    Attributes:
        scale: name of the scale's tensor.
        divisor: of the scale. bitsandbytes stores the largest magnitude of a row (``SCB``), which stands for 127.
    """

    scale: str = "weight_scale"
    divisor: float = 1.0
    ignored: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.weight_format.name

    @property
    def weight_format(self) -> WeightFormat:
        return Integers(8)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, Expected]:
        scale_shapes = ((), (1,), (1, 1), (num_rows,), (num_rows, 1))
        return {
            "weight": Expected(((num_rows, num_columns),), (torch.int8,)),
            self.scale: Expected(scale_shapes, _SCALES),
            "weight_zero_point": Expected(scale_shapes, (torch.int8,), optional=True),
            "input_scale": Expected(((), (1,)), _SCALES, optional=True),
        }

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        zero_point = tensors.get("weight_zero_point")
        if zero_point is not None and bool(zero_point.any()):
            raise CheckpointError(f"{self.name}: weights with zero points are not read; export symmetric ones")
        scale = rows_of_scale(check_scales(self.name, tensors[self.scale]), num_rows) / self.divisor
        parts = {"weight": tensors["weight"], "scale": scale}
        if "input_scale" in tensors:
            parts["input_scale"] = tensors["input_scale"].float().reshape(())
        return parts


@dataclass(frozen=True)
class PackedInt4Layout:
    """compressed-tensors' "pack-quantized" of four bits: eight codes in an int32, the lowest column lowest.

    Attributes:
        group: inputs that share a scale; None is a whole row.
        zero_points: there are some, packed along the outputs.
        scale_dtype: as the checkpoint has it; it is kept.
    """

    group: int | None = 128
    zero_points: bool = False
    scale_dtype: torch.dtype = torch.bfloat16
    ignored: tuple[str, ...] = ("weight_shape",)

    @property
    def name(self) -> str:
        return f"packed {self.weight_format.name}"

    @property
    def weight_format(self) -> WeightFormat:
        return Integers(4, self.group, Offset.ZERO_POINT if self.zero_points else Offset.NONE, self.scale_dtype)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, Expected]:
        grid = self.weight_format.parts["scale"].shape(num_rows, num_columns)
        scale_shapes = (grid,) if grid[1] > 1 else (grid, (num_rows,))
        expected = {
            "weight_packed": Expected(((num_rows, -(-num_columns // _CODES)),), (torch.int32,)),
            "weight_scale": Expected(scale_shapes, (self.scale_dtype,)),
        }
        if self.zero_points:
            expected["weight_zero_point"] = Expected(((-(-num_rows // _CODES), grid[1]),), (torch.int32,))
        return expected

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        grid = self.weight_format.parts["scale"].shape(num_rows, num_columns)
        parts = {
            # Little-endian words: their bytes are two codes each, and the even column is low already.
            "weight": tensors["weight_packed"].contiguous().view(torch.uint8)[:, : -(-num_columns // 2)],
            "scale": check_scales(self.name, tensors["weight_scale"]).reshape(grid),
        }
        if self.zero_points:
            parts["zero_point"] = unpack_words(tensors["weight_zero_point"].t(), range(_CODES)).t()[:num_rows]
        return parts


def unpack_words(words: torch.Tensor, order: range | tuple[int, ...]) -> torch.Tensor:
    """``int32 [..., n]`` of eight codes -> ``uint8 [..., 8 n]``; code i of a word belongs to column ``order[i]``."""
    shifts = torch.tensor([4 * order.index(column) for column in range(_CODES)], dtype=torch.int32)
    return (words.unsqueeze(-1) >> shifts & 15).to(torch.uint8).flatten(-2)
