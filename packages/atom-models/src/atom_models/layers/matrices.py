"""Matrices of the checkpoint, gathered in one number format as this rank holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from atom_kernels.formats import Plain, WeightFormat, cut, format_of_cuts, num_bytes, weight_specs
from atom_models.layers.loadable import RankWeight, check_shape
from atom_models.quantization import ExpectedWeight, StoredLayout
from atom_models.quantization.layouts import PlainLayout
from atom_models.quantization.rounding import rounded


@dataclass(frozen=True)
class StoredMatrix:
    """One matrix of the checkpoint, and this rank's part of it.

    Attributes:
        name: of its layer. The tensors' names follow after a dot.
        shape: (rows, columns) of the whole.
        rows: (first, last + 1) of this rank; several such runs of rows lie one below the other.
        columns: (first, last + 1) of this rank.
    """

    name: str
    layout: StoredLayout
    shape: tuple[int, int]
    rows: tuple[tuple[int, int], ...]
    columns: tuple[int, int]

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return {f"{self.name}.{suffix}": expected for suffix, expected in self.layout.expected(*self.shape).items()}

    @property
    def num_rows(self) -> int:
        """Rows of this rank."""
        return sum(last - first for first, last in self.rows)

    @property
    def stored_bytes_on_rank(self) -> int:
        whole = sum(expected.num_bytes for expected in self.layout.expected(*self.shape).values())
        first, last = self.columns
        return whole * self.num_rows * (last - first) // math.prod(self.shape)


class MatrixStack:
    """Matrices of one layout, one below the other. Memory is taken when the first of them is complete.

    Args:
        device: where they are gathered.
        num_rows: of the stack, where it has more than its matrices; the last are zeros.

    Raises:
        ValueError: this rank's part begins where the format cannot be cut.

    Attributes:
        matrices: as they were given.
        weight_format: of the stack: the layout's, with smaller tiles where a cut goes through one.
    """

    def __init__(
        self, matrices: Sequence[StoredMatrix], device: torch.device | str, num_rows: int | None = None
    ) -> None:
        first, last = matrices[0].columns
        sizes = [matrix.num_rows for matrix in matrices]
        self.shape = (num_rows or sum(sizes), last - first)
        self._stored_format = matrices[0].layout.weight_format
        try:
            self.weight_format = format_of_cuts(
                self._stored_format, [rows for matrix in matrices for rows in matrix.rows], matrices[0].columns
            )
        except ValueError as error:
            raise ValueError(f"{matrices[0].name}: {error}; give a tensor_parallel_size that does not") from None
        self._device = device
        self.matrices = tuple(matrices)
        self._starts = {matrix: sum(sizes[:place]) for place, matrix in enumerate(matrices)}
        self._owners = {name: matrix for matrix in matrices for name in matrix.expected_weights()}
        # What has come of matrices that are not complete, by the suffixes of the names.
        self._waiting: dict[StoredMatrix, dict[str, torch.Tensor]] = {}
        self._tensors: dict[str, torch.Tensor] = {}

    def expected_weights(self) -> dict[str, ExpectedWeight]:
        return {name: weight for matrix in self._starts for name, weight in matrix.expected_weights().items()}

    def on_rank(self) -> RankWeight:
        """All of them as one weight."""
        if isinstance(self.weight_format, Plain) and not isinstance(self.matrices[0].layout, PlainLayout):
            return RankWeight(self.shape, sum(matrix.stored_bytes_on_rank for matrix in self.matrices))
        return RankWeight(self.shape, num_bytes(self.weight_format, *self.shape))

    def load(self, name: str, tensor: torch.Tensor) -> None:
        """Takes one tensor, of the full shape. A matrix is put into its place with the last of its tensors."""
        matrix = self._owners[name]
        expected = matrix.layout.expected(*matrix.shape)
        suffix = name.removeprefix(f"{matrix.name}.")
        check_shape(name, tensor, expected[suffix])
        waiting = self._waiting.setdefault(matrix, {})
        waiting[suffix] = tensor
        if len(waiting) == len(expected):
            self._place(matrix, self._waiting.pop(matrix))

    def take(self, wanted: WeightFormat) -> dict[str, torch.Tensor]:
        """The tensors in a format, which the caller owns from now on: rounded to it, where it is another one."""
        tensors, self._tensors = self._tensors, {}
        if not tensors:
            raise RuntimeError(f"{next(iter(self._owners))} was never loaded")
        if wanted == self.weight_format:
            return tensors
        return rounded(tensors, self.weight_format, wanted, self.shape)

    def _place(self, matrix: StoredMatrix, stored: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in matrix.layout.to_parts(stored, *matrix.shape).items():
            part, start = self.weight_format.parts[name], self._starts[matrix]
            for rows in matrix.rows:
                end = start + rows[1] - rows[0]
                first, last = start // part.rows, -(-end // part.rows)
                target = self._tensor(name).narrow(-2, first, last - first)
                target.copy_(cut(tensor, self._stored_format.parts[name], part, rows, matrix.columns))
                start = end

    def _tensor(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            spec = weight_specs(self.weight_format, *self.shape)[name]
            self._tensors[name] = torch.zeros(spec.shape, dtype=spec.dtype, device=self._device)
        return self._tensors[name]
