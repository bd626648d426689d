"""`StoredLayout`: how a checkpoint holds one matrix, and the same numbers in a format of atom-kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from atom_kernels.formats import WeightFormat
from atom_models.checkpoint.errors import CheckpointError


class HasShape(Protocol):
    """A tensor, or what a file's header says of one."""

    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class Expected:
    """A tensor of a layout: the shapes and dtypes that it may have.

    A scale may be one number, a number a row, or a grid: each is a shape here.
    """

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    optional: bool = False

    def why_not(self, given: HasShape) -> str | None:
        if tuple(given.shape) not in self.shapes:
            return f"{list(given.shape)} instead of {' or '.join(str(list(shape)) for shape in self.shapes)}"
        if given.dtype not in self.dtypes:
            return f"{given.dtype} instead of {' or '.join(map(str, self.dtypes))}"
        return None


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
    def ignored(self) -> tuple[str, ...]:
        """Tensors that may be there and that nothing needs."""
        ...

    def expected(self, num_rows: int, num_columns: int) -> Mapping[str, Expected]: ...

    def to_parts(self, tensors: Mapping[str, torch.Tensor], num_rows: int, num_columns: int) -> dict[str, torch.Tensor]:
        """The tensors of `weight_format`, from all that were stored, whole; `check_tensors` has seen them.

        Raises:
            CheckpointError: their values cannot be held, such as scales that are NaN.
        """
        ...


def check_tensors(
    name: str, layout: StoredLayout, given: Mapping[str, HasShape], num_rows: int, num_columns: int
) -> None:
    """Raise CheckpointError, naming the tensor, where a layer's tensors are not those of its layout."""
    expected = layout.expected(num_rows, num_columns)
    for suffix, tensor in given.items():
        if suffix in layout.ignored:
            continue
        if suffix not in expected:
            raise CheckpointError(f"{name}.{suffix} is in the checkpoint, but {layout.name} has no such tensor")
        reason = expected[suffix].why_not(tensor)
        if reason is not None:
            raise CheckpointError(f"{name}.{suffix} of {layout.name} is {reason}")
    missing = [suffix for suffix, one in expected.items() if not one.optional and suffix not in given]
    if missing:
        raise CheckpointError(f"{name}: {layout.name} also needs {', '.join(missing)}, not in the checkpoint")


def rows_of_scale(scale: torch.Tensor, num_rows: int) -> torch.Tensor:
    """A scale for a whole tensor, or for each of its rows, as float32 [N, 1]."""
    return scale.float().reshape(-1, 1).expand(num_rows, 1).contiguous()


def check_scales(layout: str, scale: torch.Tensor) -> torch.Tensor:
    """Refuse scales that no quantizer writes: a file that was cut off, or was read as something else."""
    values = scale.float()
    if not bool(torch.isfinite(values).all()):
        raise CheckpointError(f"{layout}: a scale is not a finite number")
    return scale
