"""`StoredLayout`: how a checkpoint holds one matrix, and the same numbers in a format of atom-kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from atom_kernels.formats import WeightFormat
from atom_models.checkpoint.errors import CheckpointError

# Plain numbers, which loading brings from any of these to what a layer wants.
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True)
class ExpectedWeight:
    """A tensor as the checkpoint holds it, before any rank takes its part.

    Attributes:
        shape, dtype: what it has as a rule; plain numbers may have any of `FLOATS`.
        shapes, dtypes: what it may have instead: a scale may be one number, or a number a row.
        any_length: it has one dimension of any size, and `shape` is that of an empty one.
        dummy: fills it where a model gets random weights; None makes random numbers.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[torch.dtype, ...] = ()
    any_length: bool = False
    dummy: float | None = None

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype) -> str | None:
        """What is wrong with a tensor of that shape and dtype."""
        shapes = (self.shape, *self.shapes)
        if tuple(shape) not in shapes and not (self.any_length and len(shape) == 1):
            return f"is {list(shape)}, but the config calls for {' or '.join(str(list(one)) for one in shapes)}"
        if dtype in (self.dtype, *self.dtypes) or (dtype in FLOATS and self.dtype in FLOATS):
            return None
        return f"is {dtype}, but its layer's format calls for {' or '.join(map(str, (self.dtype, *self.dtypes)))}"


class StoredLayout(Protocol):
    """How one matrix [N, K] lies in a checkpoint: tensors named by what follows the layer's name.

    Layouts are values: frozen dataclasses.
    """

    @property
    def name(self) -> str:
        """As reports show it, such as ``"awq int4 per 128"``."""
        ...

    @property
    def weight_format(self) -> WeightFormat:
        """The numbers that it holds."""
        ...

    @property
    def input_format(self) -> WeightFormat | None:
        """The format to which activations may be rounded, as the checkpoint says; None rounds none."""
        ...

    @property
    def ignored(self) -> tuple[str, ...]:
        """Tensors that may be there and that nothing needs."""
        ...

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, ExpectedWeight]:
        """All of them, by what follows the layer's name."""
        ...

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        """The tensors of `weight_format`, from all that were stored, whole.

        Raises:
            CheckpointError: their values cannot be held, such as scales that are NaN.
        """
        ...


def expected_scale(num_rows: int) -> ExpectedWeight:
    """A scale for a whole tensor, or one for each row."""
    return ExpectedWeight((num_rows, 1), torch.float32, ((), (1,), (1, 1), (num_rows,)), dummy=1.0)


def rows_of_scale(scale: torch.Tensor, num_rows: int) -> torch.Tensor:
    """A scale for a whole tensor, or for each of its rows, as float32 [N, 1]."""
    return scale.float().reshape(-1, 1).expand(num_rows, 1).contiguous()


def check_scales(layout: str, scale: torch.Tensor) -> torch.Tensor:
    """Refuse scales that no quantizer writes: a file that was cut off, or was read as something else."""
    values = scale.float()
    if not bool(torch.isfinite(values).all()):
        raise CheckpointError(f"{layout}: a scale is not a finite number")
    return scale
