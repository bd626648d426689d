"""`RowRounding`: how a product wants its rows rounded, where another kernel is to round them."""

from __future__ import annotations

from dataclasses import dataclass

from atom_kernels.formats.float8 import Float8


@dataclass(frozen=True)
class RowRounding:
    """Rows ``[T, K]`` as codes of the machine's own float8 and float32 scales ``[T, groups]``.

    Attributes:
        group: inputs that share a scale; None is a whole row.
        by_column: the scales of a group of all rows lie side by side, though shape and strides say ``[T, groups]``:
            AITER's products of shuffled weights read them so.
    """

    group: int | None = None
    by_column: bool = False

    @property
    def format(self) -> Float8:
        """The number format of a row."""
        return Float8(1, self.group)

    def num_groups(self, size: int) -> int:
        """Scales of a row of `size` inputs."""
        return 1 if self.group is None else -(-size // self.group)
