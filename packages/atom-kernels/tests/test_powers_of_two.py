"""Powers of two."""

from __future__ import annotations

import pytest

from atom_kernels.powers_of_two import is_power_of_two, power_of_two


@pytest.mark.parametrize(("size", "expected"), [(0, 1), (1, 1), (2, 2), (3, 4), (1024, 1024), (1025, 2048)])
def test_a_power_of_two_is_not_below_its_size(size: int, expected: int):
    assert power_of_two(size) == expected


def test_powers_of_two_are_known():
    assert [number for number in range(-2, 20) if is_power_of_two(number)] == [1, 2, 4, 8, 16]
