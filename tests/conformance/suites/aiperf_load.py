# /// script
# requires-python = ">=3.11"
# dependencies = ["aiperf==0.13.0"]
# ///
"""AIPerf: streams of all four text APIs side by side; every request succeeds, with the tokens that were asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NUM_REQUESTS, OUTPUT_TOKENS = 6, 8


@pytest.fixture(scope="module")
def tokenizers(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache as Hugging Face's hub makes it: a tokenizer in a folder of its own is refused."""
    home = tmp_path_factory.mktemp("home")
    model = home / "hub" / "models--local--model"
    (model / "snapshots").mkdir(parents=True)
    (model / "snapshots" / "one").symlink_to(checkpoint, target_is_directory=True)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("one")
    return home


@pytest.mark.parametrize("endpoint", ["chat", "completions", "responses", "messages"])
def test_every_stream_succeeds_with_its_tokens(url, model, tokenizers, tmp_path, endpoint):
    report = profile(url, model, tokenizers, tmp_path, endpoint)
    assert report["request_count"]["avg"] == NUM_REQUESTS
    assert not report.get("error_request_count")
    assert report["error_summary"] == []
    if endpoint in ("chat", "completions"):
        # Its counts are of the server's text, tokenized again.
        assert report["output_sequence_length"]["avg"] == pytest.approx(OUTPUT_TOKENS, abs=1)
    assert 0 < report["time_to_first_token"]["avg"] < report["request_latency"]["avg"]


def profile(url: str, model: str, tokenizers: Path, folder: Path, endpoint: str) -> dict[str, Any]:
    command = Path(sys.executable).with_name("aiperf")
    subprocess.run(
        [
            str(command), "profile", "-m", model, "--url", url, "--endpoint-type", endpoint, "--streaming",
            "--tokenizer", "local/model", "--concurrency", "3", "--request-count", str(NUM_REQUESTS),
            "--synthetic-input-tokens-mean", "32", "--output-tokens-mean", str(OUTPUT_TOKENS),
            "--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", str(folder),
        ],
        check=True,
        env={**os.environ, "HF_HOME": str(tokenizers)},
    )  # fmt: skip
    (found,) = folder.rglob("profile_export_aiperf.json")
    return json.loads(found.read_text())
