# /// script
# requires-python = ">=3.11"
# dependencies = ["guidellm==0.8.1", "torch==2.13.0"]
# ///
"""GuideLLM: synthetic chats one after another and side by side; all succeed, with the tokens that were asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NUM_REQUESTS, OUTPUT_TOKENS = 6, 8


def run(url: str, model: str, checkpoint: Path, report: Path, profile: str) -> dict[str, Any]:
    command = Path(sys.executable).with_name("guidellm")
    subprocess.run(
        [
            str(command), "run", "--disable-progress",
            "--backend", f"kind=openai_http,target={url},model={model}",
            "--tokenizer", f"kind=hf_auto,model={checkpoint}",
            "--profile", profile,
            "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
            "--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT_TOKENS}",
            "--output", f"kind=json,path={report}",
        ],
        check=True,
    )  # fmt: skip
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    return benchmark


@pytest.mark.parametrize("profile", ["kind=synchronous", "kind=concurrent,streams=3"])
def test_every_request_succeeds_with_its_tokens(url, model, checkpoint, tmp_path, profile):
    requests = run(url, model, checkpoint, tmp_path / "report.json", profile)["requests"]
    assert len(requests["successful"]) >= NUM_REQUESTS
    assert requests["errored"] == []
    assert {request["output_metrics"]["text_tokens"] for request in requests["successful"]} == {OUTPUT_TOKENS}
