"""Weights of eight bits in floating point, with a scale for each row, or for each tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from atom_kernels.formats.codes import Codes
from atom_kernels.formats.tiles import largest_of_tiles
from atom_kernels.formats.weight_format import Part, WeightFormat, dequantized, spread

FP8_MAX = 448.0


@dataclass(frozen=True)
class Float8:
    """``float8_e4m3fn * scale``: a float32 scale for each `rows` x `columns` weights (None: a whole row).

    One scale for a whole tensor is held as equal scales of its rows, which changes no value; so shards with unlike
    scales can be stacked. Tiles of 128 x 128 are those of DeepSeek-V3, https://arxiv.org/abs/2412.19437.
    """

    codes: Codes = field(default=Codes.E4M3, init=False, repr=False)
    rows: int = 1
    columns: int | None = None

    @property
    def name(self) -> str:
        return "fp8 per row" if self.columns is None else f"fp8 {self.rows}x{self.columns}"

    @property
    def parts(self) -> Mapping[str, Part]:
        return {
            "weight": Part(torch.float8_e4m3fn, is_scale=False),
            "scale": Part(torch.float32, self.rows, self.columns),
        }

    def scales(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return tensors["scale"]

    def dequantize(self, tensors: Mapping[str, torch.Tensor], num_columns: int) -> torch.Tensor:
        return dequantized(self, tensors)

    def quantize(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        part = self.parts["scale"]
        largest = largest_of_tiles(weight, part)
        scale = torch.where(largest > 0, largest / FP8_MAX, 1.0)
        values = weight.float() / spread(scale, part, *weight.shape[-2:])
        # Casting is not defined beyond the largest number.
        return {"weight": values.clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), "scale": scale}

    def with_tiles(self, rows: int, columns: int | None) -> WeightFormat:
        return Float8(rows, columns)
