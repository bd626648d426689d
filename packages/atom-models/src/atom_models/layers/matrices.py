"""Matrices of the checkpoint, or of every expert, gathered in one number format as this rank holds them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from atom_kernels.formats import Codes, Plain, WeightFormat, cut, format_of_cuts, num_bytes, weight_specs
from atom_models.layers.loadable import check_shape
from atom_models.layers.weights import RankWeight
from atom_models.quantization import ExpectedWeight, StoredLayout
from atom_models.quantization.layouts import PlainLayout
from atom_models.quantization.rounding import rounded

# (first, last + 1).
Span = tuple[int, int]
_NUMBERS = Plain(torch.float32).parts
_BIAS = "bias"


@dataclass(frozen=True)
class StoredMatrix:
    """One matrix of the checkpoint, and this rank's part of it.

    Attributes:
        name: the name of its layer.
        layout: how its tensors hold the numbers.
        shape: (rows, columns) of the whole matrix, outputs first.
        rows: this rank's runs of rows, in the order in which they lie below one another.
        columns: this rank's columns.
        expert: the expert to which it belongs; None where the layer has no experts, or all are in its tensors.
        num_experts: how many experts its tensors hold, in a leading dimension; None where there is no such dimension.
        bias: the dtype of its bias; None where it has none.
        turned: inputs come before outputs where the tensor holds plain numbers.
        interleaved: rows of gate and up take turns.
    """

    name: str
    layout: StoredLayout
    shape: tuple[int, int]
    rows: tuple[Span, ...]
    columns: Span
    expert: int | None = None
    num_experts: int | None = None
    bias: torch.dtype | None = None
    turned: bool = False
    interleaved: bool = False

    def expected(self) -> dict[str, ExpectedWeight]:
        """Its tensors, and its bias, by their full names."""
        expected = dict(self.layout.expected(*(reversed(self.shape) if self._is_turned else self.shape)))
        if self.bias is not None:
            expected[_BIAS] = ExpectedWeight((self.shape[0],), self.bias)
        if self.num_experts is not None:
            expected = {part: replace(one, shape=(self.num_experts, *one.shape)) for part, one in expected.items()}
        return {self.tensor_name(part): one for part, one in expected.items()}

    def tensor_name(self, part: str) -> str:
        """The name of the tensor that the layout calls `part`, or of the bias."""
        if self.num_experts is None:
            return f"{self.name}.{part}"
        return self.name if part == "weight" and isinstance(self.layout, PlainLayout) else f"{self.name}_{part}"

    @property
    def _is_turned(self) -> bool:
        return self.turned and isinstance(self.layout, PlainLayout)

    @property
    def num_rows_on_rank(self) -> int:
        return sum(last - first for first, last in self.rows)

    def on_rank(self, stored: Mapping[str, torch.Tensor], held: WeightFormat) -> Iterator[dict[str, torch.Tensor]]:
        """This rank's runs of rows in a format: the stored codes where they differ in tiles alone, else rounded.

        Args:
            stored: the matrix's tensors by what the layout calls them, without the dimension of experts.
        """
        theirs = self.layout.weight_format
        keeps_codes = _differ_in_tiles_alone(theirs, held)
        parts = {"weight": stored["weight"].t()} if self._is_turned else self.layout.to_parts(stored, *self.shape)
        if not keeps_codes:
            parts = {"weight": theirs.dequantize(parts, self.shape[1])}
        if self.interleaved:
            parts = {name: _gate_before_up(part) for name, part in parts.items()}
        before, after = (theirs.parts, held.parts) if keeps_codes else (_NUMBERS, _NUMBERS)
        for rows in self.rows:
            taken = {name: cut(part, before[name], after[name], rows, self.columns) for name, part in parts.items()}
            yield taken if keeps_codes else held.quantize(taken["weight"])


def format_on_rank(weight_format: WeightFormat, matrices: Sequence[StoredMatrix]) -> WeightFormat:
    """The format that holds this rank's part of matrices, one below the other, without changing a number.

    Raises:
        ValueError: there is none.
    """
    scale = weight_format.parts.get("scale")
    if scale is not None and scale.rows > 1 and any(matrix.interleaved for matrix in matrices):
        raise ValueError(f"a scale of {weight_format.name} belongs to rows of gate and up that take turns")
    return format_of_cuts(weight_format, [rows for matrix in matrices for rows in matrix.rows], matrices[0].columns)


class MatrixStack:
    """Matrices of one layout, one below the other, or a stack of those of each expert.

    Memory is taken when the first of them is complete.

    Args:
        device: where they are gathered.
        held: the format in which they are gathered; None is that of the first one's layout.
        num_rows: how many rows the stack has, where they are more than those of its matrices; the last are zeros.
        experts: the expert of each place of the stack, by its id; None where the layer has none. Other
            experts of a tensor that holds all are left out.
        keeps_bias: this rank adds the biases; otherwise they are expected, and dropped.

    Raises:
        ValueError: this rank's part begins where the format cannot be cut.

    Attributes:
        matrices: as they were given.
        weight_format: the format in which they are gathered. Tiles are smaller than the layout's where a cut goes
            through one.
        shape: (rows, columns) on this rank, for each expert.
    """

    def __init__(
        self,
        matrices: Sequence[StoredMatrix],
        device: torch.device | str,
        *,
        held: WeightFormat | None = None,
        num_rows: int | None = None,
        experts: Sequence[int] | None = None,
        keeps_bias: bool = True,
    ) -> None:
        self.matrices, self._device, self._keeps_bias = tuple(matrices), device, keeps_bias
        heights: Counter[int | None] = Counter()
        self._starts: dict[StoredMatrix, int] = {}
        for matrix in matrices:
            self._starts[matrix] = heights[matrix.expert]
            heights[matrix.expert] += matrix.num_rows_on_rank
        first, last = matrices[0].columns
        self.shape = (num_rows or max(heights.values()), last - first)
        self._leading = () if experts is None else (len(experts),)
        # Where an expert lies in the stack.
        self._places: dict[int | None, list[int]] = {}
        for place, expert in enumerate(experts or ()):
            self._places.setdefault(expert, []).append(place)
        try:
            self.weight_format = held or format_on_rank(matrices[0].layout.weight_format, matrices)
        except ValueError as error:
            raise ValueError(f"{matrices[0].name}: {error}; give a tensor_parallel_size that does not") from None
        self._owners = {name: matrix for matrix in matrices for name in matrix.expected()}
        # What has come of matrices that are not complete, by the full names.
        self._waiting: dict[StoredMatrix, dict[str, torch.Tensor]] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        self._bias: torch.Tensor | None = None

    def expected(self) -> dict[str, ExpectedWeight]:
        return {name: weight for matrix in self.matrices for name, weight in matrix.expected().items()}

    def on_rank(self) -> RankWeight:
        """All of them as one weight."""
        first, count = self.matrices[0], math.prod(self._leading)
        size = num_bytes(self.weight_format, *self.shape)
        if first.layout.weight_format.codes is Codes.PLAIN:  # no layer keeps what is stored
            heights = [matrix.num_rows_on_rank for matrix in self.matrices if matrix.expert == first.expert]
            stored = [one for rows in heights for one in first.layout.expected(rows, self.shape[1]).values()]
            size = sum(one.num_bytes for one in stored)
        return RankWeight(self.shape, count * size, count)

    def __contains__(self, name: str) -> bool:
        """Whether it expects a tensor of that name."""
        return name in self._owners

    def load(self, name: str, tensor: torch.Tensor) -> None:
        """Takes one tensor, of the full shape. A matrix is put into its place with the last of its tensors."""
        matrix = self._owners[name]
        check_shape(name, tensor, matrix.expected()[name])
        if name == matrix.tensor_name(_BIAS):
            self._place_bias(matrix, tensor)
            return
        waiting = self._waiting.setdefault(matrix, {})
        waiting[name] = tensor
        names = {part: matrix.tensor_name(part) for part in matrix.layout.expected(*matrix.shape)}
        if len(waiting) < len(names):
            return
        del self._waiting[matrix]
        stored = {part: waiting[full] for part, full in names.items()}
        if matrix.num_experts is None:
            self._place(matrix, stored, matrix.expert)
            return
        for expert in self._places:
            self._place(matrix, {part: tensor[expert] for part, tensor in stored.items()}, expert)

    def take(self, wanted: WeightFormat | None = None) -> dict[str, torch.Tensor]:
        """The tensors, which the caller owns from now on, rounded to the wanted format where they have another one.

        Raises:
            RuntimeError: nothing was loaded.
        """
        tensors, self._tensors = self._tensors, {}
        if not tensors:
            raise RuntimeError(f"{next(iter(self._owners))} was never loaded")
        if wanted in (None, self.weight_format):
            return tensors
        return rounded(tensors, self.weight_format, wanted, self.shape)

    def take_bias(self) -> torch.Tensor:
        """The bias of all matrices, which the caller owns from now on; zeros where none was loaded."""
        bias, self._bias = self._bias, None
        return self._no_bias() if bias is None else bias

    def _no_bias(self) -> torch.Tensor:
        return torch.zeros((*self._leading, self.shape[0]), dtype=self.matrices[0].bias, device=self._device)

    def _place_bias(self, matrix: StoredMatrix, bias: torch.Tensor) -> None:
        if not self._keeps_bias:
            return
        if self._bias is None:
            self._bias = self._no_bias()
        if matrix.interleaved:
            bias = _gate_before_up(bias.unsqueeze(-1)).squeeze(-1)
        experts = self._places if matrix.num_experts is not None else (matrix.expert,)
        for expert in experts:
            own = bias if matrix.num_experts is None else bias[expert]
            for target in self._targets(self._bias, expert):
                first = self._starts[matrix]
                for rows in matrix.rows:
                    last = first + rows[1] - rows[0]
                    target[first:last].copy_(own[slice(*rows)])
                    first = last

    def _place(self, matrix: StoredMatrix, stored: Mapping[str, torch.Tensor], expert: int | None) -> None:
        first = self._starts[matrix]
        for rows, parts in zip(matrix.rows, matrix.on_rank(stored, self.weight_format), strict=True):
            last = first + rows[1] - rows[0]
            for name, part in parts.items():
                height = self.weight_format.parts[name].rows
                for target in self._targets(self._tensor(name), expert):
                    target[first // height : -(-last // height)].copy_(part)
            first = last

    def _targets(self, tensor: torch.Tensor, expert: int | None) -> list[torch.Tensor]:
        """The parts of a tensor of the stack that hold an expert, or all of it where there are none."""
        return [tensor] if expert is None else [tensor[place] for place in self._places[expert]]

    def _tensor(self, name: str) -> torch.Tensor:
        if name not in self._tensors:
            spec = weight_specs(self.weight_format, *self.shape, self._leading)[name]
            self._tensors[name] = torch.zeros(spec.shape, dtype=spec.dtype, device=self._device)
        return self._tensors[name]


def _gate_before_up(part: torch.Tensor) -> torch.Tensor:
    """``[..., rows, columns]`` with rows of gate and up that take turns -> all of gate, then all of up."""
    return part.unflatten(-2, (-1, 2)).transpose(-3, -2).flatten(-3, -2)


def _differ_in_tiles_alone(stored: WeightFormat, held: WeightFormat) -> bool:
    scale = held.parts.get("scale")
    try:
        return stored == held or (scale is not None and stored.with_tiles(scale.rows, scale.columns) == held)
    except ValueError:
        return False
