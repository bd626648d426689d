"""The benchmark of masks, on a tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.__main__ import main


def test_masks_and_what_they_add_to_steps_are_measured(tiny_llama: Path, capsys: pytest.CaptureFixture[str]):
    kinds = ["500 choices", "[a-z ]{1,400}"]
    flags = ["--batch-size", "2", "--decode-steps", "24", "--turns", "1", "--num-threads", "1"]
    assert main(["masks", "--model", str(tiny_llama), "--only", *kinds, *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    made = [line for line in lines if "compiled in" in line]
    assert {line[:13].strip() for line in made} == set(kinds)
    assert sum("llguidance*" in line or "xgrammar*" in line for line in made) == 2
    [used] = [line for line in lines if line.startswith("using masks on logits")]
    assert float(used.split()[-1]) > 0
    steps = {line[:13].strip(): int(found[1]) for line in lines if (found := re.search(r"; (\d+) steps$", line))}
    assert steps["[a-z ]{1,400}"] == 24
    assert 0 < steps["500 choices"] < 24, "steps after the end of a text count"
