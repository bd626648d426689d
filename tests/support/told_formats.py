"""`Told`: a format of weights of a class that nothing knows, which can be read by what it says of itself alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from atom_kernels.formats import Codes, Part, WeightFormat, dequantized


@dataclass(frozen=True)
class Told:
    """Another format, whose scales are stored as halves of themselves."""

    other: WeightFormat

    @property
    def name(self) -> str:
        return f"told {self.other.name}"

    @property
    def codes(self) -> Codes:
        return self.other.codes

    @property
    def parts(self) -> Mapping[str, Part]:
        return self.other.parts

    def scales(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.other.scales(tensors) * 2

    def dequantize(self, tensors: Mapping[str, torch.Tensor], num_columns: int) -> torch.Tensor:
        return dequantized(self, tensors)

    def quantize(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        tensors = self.other.quantize(weight)
        return tensors | {"scale": (tensors["scale"].float() / 2).to(tensors["scale"].dtype)}

    def with_tiles(self, rows: int, columns: int | None) -> WeightFormat:
        return replace(self, other=self.other.with_tiles(rows, columns))
