"""Weights of eight bits in floating point, as Hugging Face's "fp8" and compressed-tensors hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atom_kernels.formats import Float8, WeightFormat
from atom_models.quantization.layouts.stored import ExpectedWeight, check_scales, expected_scale, rows_of_scale

# Scales that are powers of two may be stored as their exponents.
_EXPONENTS = (torch.float8_e8m0fnu, torch.uint8)


@dataclass(frozen=True)
class Float8Layout:
    """``weight`` in e4m3 and a scale that multiplies, whatever its name says.

    Attributes:
        tile: (rows, columns) that share a scale; None for one scale a row or one for all.
        scale: name of the scale's tensor.
        rounds_inputs: activations may be rounded to fp8 too, a row or a row's tile by itself.
    """

    tile: tuple[int, int] | None = None
    scale: str = "weight_scale"
    ignored: tuple[str, ...] = ("input_scale",)
    rounds_inputs: bool = True

    @property
    def name(self) -> str:
        return self.weight_format.name

    @property
    def weight_format(self) -> WeightFormat:
        return Float8() if self.tile is None else Float8(*self.tile)

    @property
    def input_format(self) -> WeightFormat | None:
        if not self.rounds_inputs:
            return None
        return Float8() if self.tile is None else Float8(1, self.tile[1])

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        weight = ExpectedWeight((num_rows, num_columns), torch.float8_e4m3fn)
        if self.tile is None:
            return {"weight": weight, self.scale: expected_scale(num_rows)}
        grid = self.weight_format.parts["scale"].shape(num_rows, num_columns)
        return {"weight": weight, self.scale: ExpectedWeight(grid, torch.float32, dtypes=_EXPONENTS, dummy=1.0)}

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        scale = tensors[self.scale]
        if scale.dtype is torch.uint8:
            scale = scale.view(torch.float8_e8m0fnu)
        scale = check_scales(self.name, scale)
        return {
            "weight": tensors["weight"],
            "scale": rows_of_scale(scale, num_rows) if self.tile is None else scale.float(),
        }
