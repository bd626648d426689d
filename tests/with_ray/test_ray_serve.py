"""docs/ray/serve_app.py runs: an engine whose ranks Ray places, behind ATOM's own routes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("ray.serve")

from tests.with_ray.hosts import TOKEN

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
URL = "http://127.0.0.1:8765"
# Starts the application, and answers the end of its input by ending it.
RUN = """
import json, sys
import ray
from ray import serve
from serve_app import application
ray.init(num_cpus=4, num_gpus=0, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": 8765})
serve.run(application(json.loads(sys.argv[1])))
print("runs", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""


@pytest.fixture
def served(tiny_llama: Path, tmp_path: Path) -> Iterator[str]:
    settings = {"model": str(tiny_llama), "dtype": "float32", "num_kv_blocks": 64, "num_threads": 1, "seed": 0}
    words = [sys.executable, "-c", RUN, json.dumps({**settings, "tensor_parallel_size": 2})]
    paths = [str(ROOT / "docs" / "ray"), os.environ["PYTHONPATH"]]
    log = tmp_path / "log.txt"
    # The names of Ray's sockets are long: its folder's has to be short.
    with log.open("wb") as file, tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, **TOKEN, "PYTHONPATH": ":".join(paths), "RAY_TMPDIR": folder}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": file}
        with subprocess.Popen(words, text=True, env=environment, **pipes) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                assert "runs\n" in iter(process.stdout.readline, ""), log.read_text()
                yield URL
            finally:
                process.stdin.close()
                process.wait(60)


def asked(url: str, body: dict[str, object]) -> dict[str, object]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def test_the_application_answers_as_a_server_of_ours(served: str):
    deadline = time.monotonic() + 30
    while True:
        try:
            [model] = json.loads(urllib.request.urlopen(f"{served}/v1/models", timeout=10).read())["data"]
            break
        except urllib.error.HTTPError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    body = {"model": model["id"], "prompt": [3, 4, 5], "max_tokens": 4, "temperature": 0, "ignore_eos": True}
    answer = asked(f"{served}/v1/completions", body)
    assert answer["usage"]["completion_tokens"] == 4
