"""`WeightFormat`: how the numbers of a weight matrix are held. N: rows (outputs), K: columns (inputs)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, cast, runtime_checkable

import torch

from atom_kernels.formats.codes import Codes
from atom_kernels.operator import WeightSpec


@dataclass(frozen=True)
class Part:
    """One tensor of a format. Each of its elements belongs to `rows` x `columns` weights.

    Attributes:
        dtype: the dtype of the tensor.
        rows: outputs that share an element.
        columns: inputs that share an element; None is a whole row. Two packed codes share a byte.
        is_scale: an element is a number that its weights have in common, so that it may be repeated for fewer of them.
    """

    dtype: torch.dtype
    rows: int = 1
    columns: int | None = 1
    is_scale: bool = True

    def shape(self, num_rows: int, num_columns: int) -> tuple[int, int]:
        """The tensor's shape for a matrix of that size; elements at its edges may stand for fewer weights."""
        return -(-num_rows // self.rows), 1 if self.columns is None else -(-num_columns // self.columns)


@runtime_checkable
class WeightFormat(Protocol):
    """How a matrix [N, K] is held: named tensors, each [..., rows, columns] in units of its `Part`.

    Formats are values: equal ones may be stacked. Leading dimensions, such as experts, are alike in all tensors.
    """

    @property
    def name(self) -> str:
        """As reports show it, such as ``"fp8 128x128"``."""
        ...

    @property
    def codes(self) -> Codes:
        """What the part ``weight`` holds."""
        ...

    @property
    def parts(self) -> Mapping[str, Part]:
        """The tensors: ``weight``, and ``scale`` unless codes are plain. ``zero_point`` and ``minimum`` may follow, in
        the tiles of ``scale``: a weight is ``(code - zero_point) * scale + minimum``."""
        ...

    def scales(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """What the codes of each tile are multiplied by, as numbers of any floating dtype; codes are not plain."""
        ...

    def dequantize(self, tensors: Mapping[str, torch.Tensor], num_columns: int) -> torch.Tensor:
        """The float32 weights [..., N, `num_columns`], each rounded at most once."""
        ...

    def quantize(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        """The nearest matrix of this format to ``[..., N, K]``, by rounding each weight by itself."""
        ...

    def with_tiles(self, rows: int, columns: int | None) -> WeightFormat:
        """The same with scales for tiles of that size, which divides that of today's.

        Raises:
            ValueError: the format fixes the size.
        """
        ...


@dataclass(frozen=True)
class Plain:
    """Floating point numbers as they are."""

    dtype: torch.dtype
    codes: Codes = field(default=Codes.PLAIN, init=False, repr=False)

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def parts(self) -> Mapping[str, Part]:
        return {"weight": Part(self.dtype, is_scale=False)}

    def scales(self, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
        raise TypeError(f"{self.name} has no scales")

    def dequantize(self, tensors: Mapping[str, torch.Tensor], num_columns: int) -> torch.Tensor:
        return tensors["weight"].float()

    def quantize(self, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"weight": weight.to(self.dtype)}

    def with_tiles(self, rows: int, columns: int | None) -> WeightFormat:
        return self


# The default of problems, which put `Plain` of their own dtype in its place.
PLAIN_BY_DEFAULT = cast("WeightFormat", None)


def dequantized(weight_format: WeightFormat, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The float32 weights that a format describes: ``(code - zero_point) * scale + minimum``."""
    numbers, parts = weight_format.codes.numbers(tensors["weight"]), weight_format.parts
    shape = numbers.shape[-2:]
    if "zero_point" in parts:
        numbers.sub_(spread(tensors["zero_point"].float(), parts["zero_point"], *shape))
    elif weight_format.codes is Codes.INT4 and "minimum" not in parts:
        numbers.sub_(8.0)
    numbers.mul_(spread(weight_format.scales(tensors).float(), parts["scale"], *shape))
    if "minimum" in parts:
        numbers.add_(spread(tensors["minimum"].float(), parts["minimum"], *shape))
    return numbers


def weight_specs(
    weight_format: WeightFormat, num_rows: int, num_columns: int, leading: tuple[int, ...] = ()
) -> dict[str, WeightSpec]:
    """The tensors of a matrix in a format."""
    return {
        name: WeightSpec((*leading, *part.shape(num_rows, num_columns)), part.dtype)
        for name, part in weight_format.parts.items()
    }


def num_bytes(weight_format: WeightFormat, num_rows: int, num_columns: int) -> int:
    return sum(spec.num_bytes for spec in weight_specs(weight_format, num_rows, num_columns).values())


def spread(scale: torch.Tensor, part: Part, num_rows: int, num_columns: int) -> torch.Tensor:
    """A scale's tensor as something that a matrix [..., num_rows, num_columns] can be multiplied by."""
    if part.rows > 1:
        scale = scale.repeat_interleave(part.rows, dim=-2)[..., :num_rows, :]
    if part.columns is not None and part.columns > 1:
        scale = scale.repeat_interleave(part.columns, dim=-1)[..., :num_columns]
    return scale
