"""Weights that are stored as floating point numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atom_kernels.formats import Plain, WeightFormat
from atom_models.quantization.layouts.stored import ExpectedWeight


@dataclass(frozen=True)
class PlainLayout:
    """``weight`` in any floating point dtype, which loading brings to `dtype`."""

    dtype: torch.dtype
    ignored: tuple[str, ...] = ()
    input_format = None

    @property
    def name(self) -> str:
        return self.weight_format.name

    @property
    def weight_format(self) -> WeightFormat:
        return Plain(self.dtype)

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        return {"weight": ExpectedWeight((num_rows, num_columns), self.dtype)}

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        return dict(tensors)
