"""`ExpertStack`: one matrix of every expert of a layer, gathered in one number format as this rank holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from atom_kernels.formats import Plain, WeightFormat, cut, format_of_cuts, weight_specs
from atom_kernels.moe.contract import ExpertMatrix
from atom_models.quantization import ExpectedWeight, StoredLayout
from atom_models.quantization.layouts import PlainLayout

Span = tuple[int, int]
_NUMBERS = Plain(torch.float32).parts


@dataclass(frozen=True)
class StoredExpertMatrix:
    """How the checkpoint has a matrix of an expert, or half of it.

    Attributes:
        layout: of its tensors.
        shape: (rows, columns) of one expert's numbers, outputs first.
        turned: inputs come before outputs.
        interleaved: rows of gate and up take turns.
        half: 0 for gate and 1 for up where each is a matrix of its own.
    """

    layout: StoredLayout
    shape: tuple[int, int]
    turned: bool = False
    interleaved: bool = False
    half: int | None = None

    def expected(self) -> Mapping[str, ExpectedWeight]:
        """One expert's tensors, by what the layout calls them."""
        rows, columns = self.shape
        return self.layout.expected(columns, rows) if self.turned else self.layout.expected(rows, columns)

    def parts(self, stored: Mapping[str, torch.Tensor], *, as_numbers: bool) -> dict[str, torch.Tensor]:
        """One expert's tensors in the format of the layout, or as plain numbers; gate before up."""
        if self.turned:
            parts = {"weight": stored["weight"].t()}
        else:
            parts = self.layout.to_parts(stored, *self.shape)
            if as_numbers and not isinstance(self.layout, PlainLayout):
                parts = {"weight": self.layout.weight_format.dequantize(parts, self.shape[1])}
        if not self.interleaved:
            return parts
        return {name: part.unflatten(0, (-1, 2)).transpose(0, 1).flatten(0, 1) for name, part in parts.items()}


@dataclass(frozen=True)
class RankPart:
    """Which part of a matrix this rank holds.

    Attributes:
        rows: (first, last + 1) of each run of rows, in the order in which they lie below one another.
        columns: (first, last + 1).
    """

    rows: tuple[Span, ...]
    columns: Span


def format_on_rank(stored: WeightFormat, part: RankPart, *, interleaved: bool = False) -> WeightFormat | None:
    """The format that holds that part of every expert without changing a number; None where there is none."""
    scale = stored.parts.get("scale")
    if interleaved and scale is not None and scale.rows > 1:
        return None
    try:
        return format_of_cuts(stored, part.rows, part.columns)
    except ValueError:
        return None


class ExpertStack:
    """One matrix of every expert. Memory is taken with the first that is placed."""

    def __init__(self, matrix: ExpertMatrix, num_experts: int, device: torch.device | str) -> None:
        self._matrix, self._num_experts, self._device = matrix, num_experts, device
        self._tensors: dict[str, torch.Tensor] = {}

    def place(
        self, expert: int, source: StoredExpertMatrix, stored: Mapping[str, torch.Tensor], part: RankPart
    ) -> None:
        """Puts this rank's part of one expert's matrix into its place: as it is stored, or rounded to the format."""
        held, stored_format = self._matrix.held, source.layout.weight_format
        keeps_codes = _differ_in_tiles_alone(stored_format, held)
        before, after = (stored_format.parts, held.parts) if keeps_codes else (_NUMBERS, _NUMBERS)
        parts = source.parts(stored, as_numbers=not keeps_codes)
        start = self._matrix.rows // 2 * (source.half or 0)
        for rows in part.rows:
            end = start + rows[1] - rows[0]
            taken = {name: cut(parts[name], before[name], after[name], rows, part.columns) for name in parts}
            if not keeps_codes and not isinstance(held, Plain):
                taken = held.quantize(taken["weight"])
            self._put(expert, (start, end), taken)
            start = end

    def take(self) -> dict[str, torch.Tensor]:
        """The tensors by the operator's names, which the caller owns from now on.

        Raises:
            RuntimeError: nothing was placed.
        """
        tensors, self._tensors = self._tensors, {}
        if not tensors:
            raise RuntimeError(f"the experts' {self._matrix.name} was never loaded")
        return {self._matrix.tensors[part]: tensor for part, tensor in tensors.items()}

    def _put(self, expert: int, rows: Span, parts: Mapping[str, torch.Tensor]) -> None:
        if not self._tensors:
            specs = weight_specs(self._matrix.held, self._matrix.rows, self._matrix.columns, (self._num_experts,))
            for name, spec in specs.items():
                self._tensors[name] = torch.zeros(spec.shape, dtype=spec.dtype, device=self._device)
        for name, tensor in parts.items():
            height = self._matrix.held.parts[name].rows
            first, last = rows[0] // height, -(-rows[1] // height)
            self._tensors[name][expert, first:last].copy_(tensor)


def _differ_in_tiles_alone(stored: WeightFormat, held: WeightFormat) -> bool:
    if stored == held:
        return True
    scale = held.parts.get("scale")
    try:
        return scale is not None and stored.with_tiles(scale.rows, scale.columns) == held
    except ValueError:
        return False
