"""The benchmark of masks, on a tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.__main__ import main

KINDS = ["500 choices", "[a-z ]{1,400}"]


def lines_of(model: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> list[str]:
    assert main(["masks", "--model", str(model), "--only", *KINDS, "--batch-size", "2", "--no-save", *flags]) == 0
    return capsys.readouterr().out.splitlines()


def test_masks_and_their_use_are_measured(tiny_llama: Path, capsys: pytest.CaptureFixture[str]):
    lines = lines_of(tiny_llama, capsys)
    made = [line for line in lines if "compiled in" in line]
    assert {line[:13].strip() for line in made} == set(KINDS)
    assert sum("llguidance*" in line or "xgrammar*" in line for line in made) == 2
    [used] = [line for line in lines if line.startswith("using masks on logits")]
    assert float(used.split()[-1]) > 0


def test_what_grammars_add_to_steps_is_measured(tiny_llama: Path, capsys: pytest.CaptureFixture[str]):
    lines = lines_of(tiny_llama, capsys, "--decode-steps", "24", "--turns", "1", "--num-threads", "1")
    steps = {line[:13].strip(): int(found[1]) for line in lines if (found := re.search(r"; (\d+) steps$", line))}
    assert steps["[a-z ]{1,400}"] == 24
    assert 0 < steps["500 choices"] < 24, "steps after the end of a text count"
