"""The benchmark of speculation, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.tables import speculation_table


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_generation_with_and_without_guesses_is_compared_and_kept(
    method: str, tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "result.json"
    sizes = (
        "--method",
        method,
        "--batch-sizes",
        "1",
        "--max-tokens",
        "8",
        "--rounds",
        "1",
        "--kv-cache-memory",
        "16MiB",
    )
    assert main(["speculation", "--model", str(tiny_llama), *sizes, "--output", str(path)]) == 0
    document = json.loads(path.read_text())
    assert [(result["text"], result["batch_size"]) for result in document["results"]] == [
        ("repeating", 1),
        ("not repeating", 1),
    ]
    assert all(result["num_outputs_that_differ"] == 0 < result["num_outputs"] for result in document["results"])
    printed, table = capsys.readouterr().out, speculation_table(document)
    for result in document["results"]:
        for speed in result["tokens_per_s"].values():
            assert f"{speed:.1f}" in printed
            assert f"{speed:.1f}" in table
    assert "4 of 4 outputs were equal" in table
    assert f"Up to 8 guesses by {method}; 1 rounds." in table
