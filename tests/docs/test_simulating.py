"""docs/simulating.md: its tables are what is simulated, and what is far off has a reason."""

from __future__ import annotations

import re

import pytest

from tools.simulation_tables import NEAR, PAGE, rendered

TEXT = PAGE.read_text(encoding="utf-8")


def test_steps_are_as_far_from_measured_ones_as_the_page_says():
    assert rendered(TEXT, ["measured"]) == TEXT, "run `python tools/simulation_tables.py`"


@pytest.mark.slow
def test_published_figures_and_recipes_are_simulated_as_the_page_says():
    assert rendered(TEXT, ["published", "recipes"]) == TEXT, "run `python tools/simulation_tables.py`"


def test_what_is_further_off_than_a_quarter_says_why():
    far = []
    for line in TEXT.splitlines():
        off = re.search(r"\| ([+-]\d+)% \|", line)
        if off and abs(int(off[1])) > 100 * NEAR:
            far.append(line)
    assert far
    assert [line for line in far if line.endswith(("|  |", "% |"))] == []
