# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "torch==2.13.0", "transformers==5.19.0", "datasets==5.2.0", "numpy==2.4.6", "pillow==13.0.0", "einops==0.8.2",
#   "aiohttp==3.14.5", "fastapi==0.165.0", "openai==3.54.0", "openai-harmony==0.0.8", "requests==2.34.2",
#   "uvicorn==0.54.0", "uvloop==0.23.0", "watchfiles==1.3.0", "pydantic==2.14.3", "pyzmq==27.3.0", "msgspec==0.22.0",
#   "cachetools==8.0.1", "cbor2==6.2.1", "cloudpickle==3.1.2", "llguidance==1.9.1", "apache-tvm-ffi==0.1.15.post2",
#   "orjson==3.13.0", "partial-json-parser==0.2.1.1.post7", "prometheus_client==0.26.0", "psutil==7.2.2",
#   "py-cpuinfo==9.0.0", "pybase64==1.5.1", "pyyaml==6.0.3", "regex==2026.11.15", "tqdm==4.70.1",
# ]
# [tool.conformance]
# without-dependencies = ["vllm==0.33.0", "xgrammar==0.2.8"] # theirs are a CUDA toolkit, and the client needs none
# ///
"""vLLM's serving benchmark, on completions and chat: every request succeeds and gives as many tokens as asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NUM_PROMPTS, OUTPUT_TOKENS = 8, 16


def bench(url: str, model: str, checkpoint: Path, folder: Path, *flags: str) -> dict[str, Any]:
    subprocess.run(
        [
            str(Path(sys.executable).with_name("vllm")), "bench", "serve",
            "--base-url", url, "--model", model, "--tokenizer", str(checkpoint),
            "--dataset-name", "random", "--random-input-len", "48", "--random-output-len", str(OUTPUT_TOKENS),
            "--num-prompts", str(NUM_PROMPTS), "--max-concurrency", "4", "--ignore-eos",
            "--save-result", "--result-dir", str(folder), "--result-filename", "result.json", *flags,
        ],
        check=True,
    )  # fmt: skip
    return json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize(
    ("backend", "endpoint"), [("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")]
)
def test_every_request_succeeds_with_its_tokens(url, model, checkpoint, tmp_path, backend, endpoint):
    result = bench(url, model, checkpoint, tmp_path, "--backend", backend, "--endpoint", endpoint)
    assert (result["completed"], result.get("failed", 0)) == (NUM_PROMPTS, 0)
    assert result["total_output_tokens"] == NUM_PROMPTS * OUTPUT_TOKENS
    assert result["mean_ttft_ms"] > 0
    assert result["mean_tpot_ms"] > 0
