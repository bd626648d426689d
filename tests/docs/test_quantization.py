"""docs/quantization.md: figures are those of the saved results, and checkpoints those that are tested."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from published_catalog import CHECKPOINTS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "quantization.md").read_text(encoding="utf-8")


def test_figures_are_those_of_the_saved_results():
    spec = importlib.util.spec_from_file_location("accuracy_table", ROOT / "tools" / "accuracy_table.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert len(list(generator.RESULTS.glob("accuracy-*.json"))) > 1
    assert generator.page() == PAGE, "run `python tools/accuracy_table.py`"


def test_published_checkpoints_are_those_that_are_tested():
    names: set[str] = set()
    for line in PAGE.partition("## Published checkpoints")[2].splitlines():
        first, *others = re.split(r", ", line.strip("| ").partition(" | ")[0])
        if "/" in first and line.startswith("| "):
            base = first.removesuffix("-FP8")
            names |= {first, *(base + other if other.startswith("-") else other for other in others)}
    assert names == CHECKPOINTS.keys()
