"""Powers of two, which tiles and pages are made of."""

from __future__ import annotations


def power_of_two(size: int) -> int:
    """The smallest power of two that is not below `size`."""
    return 1 << max(size - 1, 0).bit_length()


def is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
