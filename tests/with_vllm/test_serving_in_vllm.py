"""`vllm serve` with the plugin beside it, and its clients, none of which knows of us."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from atom_core import LLMEngine, SamplingParams
from tests.conformance.environments import EnvironmentUnavailableError, environment_of, pytest_command
from tests.conformance.suite import FOLDER, Suite
from tests.with_vllm.conftest import ROOT, vllm_environment

if TYPE_CHECKING:
    import openai

START_SECONDS = 600
PROMPT = "The capital of France is"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(vllm_python: str, smollm2_folder: Path, tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """The URL without a path, and the server's log."""
    log = tmp_path_factory.mktemp("serve") / "log"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    flags = ["--port", str(port), "--host", "127.0.0.1", "--max-model-len", "1024", "--dtype", "float32"]
    command = [str(Path(vllm_python).parent / "vllm"), "serve", str(smollm2_folder), *flags, "--enforce-eager"]
    environment = vllm_environment() | {"VLLM_MAX_STOP_STRINGS": "8"}  # lm-eval's have five; later versions take four
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_healthy(url, process, log)
        yield url, log
    finally:
        process.terminate()
        process.wait(60)


def wait_until_healthy(url: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=10):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(1)
    raise RuntimeError(f"vLLM did not start:\n{log.read_text()[-6000:]}")


@pytest.fixture
def client(served: tuple[str, Path]) -> Iterator[openai.OpenAI]:
    import openai  # which the tests for GPUs, collected with these, do without

    with openai.OpenAI(base_url=f"{served[0]}/v1", api_key="none", timeout=300) as client:
        yield client


def test_the_server_runs_our_model_with_our_attention(served) -> None:
    log = served[1].read_text()
    assert "Register model LlamaForCausalLM to vLLM with atom_vllm.models.model_wrapper:ATOMForCausalLM" in log
    assert "Use atom attention backend" in log


def test_the_official_client_completes_as_our_own_engine_does(client, smollm2_folder: Path) -> None:
    name = client.models.list().data[0].id
    done = client.completions.create(model=name, prompt=PROMPT, temperature=0, max_tokens=24)
    with LLMEngine(str(smollm2_folder), dtype="float32", max_model_len=512) as engine:
        [own] = engine.generate([PROMPT], SamplingParams(temperature=0.0, max_tokens=24), use_tqdm=False)
    assert done.choices[0].text == own["text"]
    assert done.usage.completion_tokens == 24


def test_the_official_client_streams_a_chat(client) -> None:
    name = client.models.list().data[0].id
    messages = [{"role": "user", "content": "Name three colors."}]
    whole = client.chat.completions.create(model=name, messages=messages, temperature=0, max_tokens=16)
    with client.chat.completions.create(
        model=name, messages=messages, temperature=0, max_tokens=16, stream=True
    ) as stream:
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(pieces) > 3


def test_vllms_own_benchmark_runs_unchanged(served, vllm_python: str, smollm2_folder: Path, tmp_path) -> None:
    subprocess.run(
        [
            str(Path(vllm_python).parent / "vllm"), "bench", "serve",
            "--base-url", served[0], "--model", str(smollm2_folder),
            "--dataset-name", "random", "--random-input-len", "48", "--random-output-len", "16",
            "--num-prompts", "6", "--max-concurrency", "3", "--ignore-eos",
            "--percentile-metrics", "ttft,tpot,itl,e2el",
            "--save-result", "--result-dir", str(tmp_path), "--result-filename", "result.json",
        ],
        check=True, env=vllm_environment(), timeout=START_SECONDS,
    )  # fmt: skip
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["total_output_tokens"]) == (6, 96)


def test_lm_eval_measures_what_it_measures_with_transformers(served, smollm2_folder: Path) -> None:
    suite = Suite.read(FOLDER / "lm_evaluation.py")
    try:
        environment = environment_of(suite, ROOT / ".conformance" / "environments")
    except EnvironmentUnavailableError as error:
        pytest.skip(f"lm-eval cannot be installed here: {error}")
    variables = {"ATOM_URL": served[0], "ATOM_MODEL": str(smollm2_folder), "ATOM_CHECKPOINT": str(smollm2_folder)}
    done = subprocess.run(
        pytest_command(suite, environment / "bin" / "python"),
        env=dict(os.environ) | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
