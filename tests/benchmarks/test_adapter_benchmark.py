"""The benchmark of adapters, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.adapters import MIXED, PLAIN, UNUSED


def test_a_batch_of_adapters_is_measured_beside_the_plain_model(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "result.json"
    sizes = ("--adapters", "3", "--rank", "4", "--batch-sizes", "3", "--context", "8", "--turns", "1", "--steps", "2")
    assert main(["adapters", "--model", str(tiny_llama), "--threads", "1", *sizes, "--output", str(path)]) == 0
    [result] = json.loads(path.read_text())["results"]
    assert set(result["sides"]) == {PLAIN, UNUSED, MIXED}
    printed = capsys.readouterr().out
    assert "3 adapters of rank 4 for all linears" in printed
    assert f"{result['sides'][MIXED]['median_ms']:.2f} ms" in printed
    assert f"{result['speed'][MIXED]['median']:.2f}" in printed
