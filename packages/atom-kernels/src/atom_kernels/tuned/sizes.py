"""Tables of a few numbers a row, such as the blocks that a tuner tries, as they are written in source."""

from __future__ import annotations


def sizes(table: str) -> tuple[tuple[int, ...], ...]:
    """``"1x1024x2 2x2048x4"`` -> ``((1, 1024, 2), (2, 2048, 4))``."""
    return tuple(tuple(map(int, row.split("x"))) for row in table.split())
