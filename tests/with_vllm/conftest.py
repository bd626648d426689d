"""An environment with vLLM, and what it generates there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.plugin import plugin_path
from tests.with_vllm.generate import MARK
from tests.with_vllm.traces import lines_of_ours

ROOT = Path(__file__).parents[2]
SECONDS = 1500
STOCK = {"ATOM_DISABLE_VLLM_PLUGIN": "1"}
IN_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
# vLLM asks once in a process for layers of each kind, so only one of several engines in it may say so.
ATTENTION_OURS = "Use atom attention backend"

Tokens = list[list[int]]


@dataclass(frozen=True)
class Outcome:
    """What became of a job: tokens by round, how likely each was, and cached tokens of prompts; and what was logged.

    Or an error.
    """

    log: str
    tokens: list[Tokens] | None = None
    logprobs: list[list[list[float]]] | None = None
    cached: list[list[int]] | None = None
    error: str | None = None


Run = Callable[..., list[Outcome]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--vllm-python",
        action="append",
        help="Python of an environment with vLLM and our packages; may be repeated",
    )
    parser.addoption("--vllm-path", help="a folder with vLLM for the Python that runs the tests, for a GPU")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test runs in each environment with vLLM."""
    if "vllm_python" in metafunc.fixturenames:
        pythons = metafunc.config.getoption("--vllm-python", default=None) or [None]
        names = [Path(python).parent.parent.name if python else "none" for python in pythons]
        metafunc.parametrize("vllm_python", pythons, ids=names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def vllm_python(request: pytest.FixtureRequest) -> str:
    if request.config.getoption("--vllm-path", default=None):
        return sys.executable
    python = request.param or pytest.skip("needs an environment with vLLM: make test-vllm")
    return python if Path(python).exists() else pytest.skip(f"{python} could not be made: make test-vllm says why")


@pytest.fixture(scope="session")
def vllm_release(vllm_python: str) -> tuple[int, int]:
    """Major and minor version of that vLLM."""
    code = "from atom_vllm.compat import vllm_version; print(*vllm_version().release[:2])"
    done = subprocess.run([vllm_python, "-c", code], capture_output=True, text=True, check=True)
    major, minor = done.stdout.split()
    return int(major), int(minor)


@pytest.fixture(scope="session")
def vllm_search_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """PYTHONPATH where vLLM is in a folder and our packages are not installed beside it."""
    path = request.config.getoption("--vllm-path", default=None)
    return {"PYTHONPATH": plugin_path(tmp_path_factory.mktemp("plugin"), path)} if path else {}


@pytest.fixture(scope="session")
def run_jobs(vllm_python: str, vllm_search_path: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``run_jobs([{"model": ..., "llm": {}, ...}, ...], environment)``: one process, an engine for each job.

    Several may run at a time.
    """

    def run(jobs: list[dict[str, Any]], environment: dict[str, str] | None = None) -> list[Outcome]:
        folder = tmp_path_factory.mktemp("jobs")
        given, output, log = folder / "jobs.json", folder / "results.json", folder / "log"
        given.write_text(json.dumps([job | {"model": str(job["model"])} for job in jobs]))
        with log.open("w") as said:
            done = subprocess.run(
                [vllm_python, str(Path(__file__).parent / "generate.py"), str(given), str(output)],
                env=vllm_environment() | vllm_search_path | (environment or {}),
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=SECONDS,
                check=False,
            )
        assert done.returncode == 0, log.read_text()[-6000:]
        logs = re.findall(rf"{MARK} \d+ begins\n(.*?){MARK} \d+ ends", log.read_text(), flags=re.DOTALL)
        results = json.loads(output.read_text())
        assert len(results) == len(logs) == len(jobs)
        return [Outcome(log=text, **result) for result, text in zip(results, logs, strict=True)]

    return run


@pytest.fixture(scope="session")
def generate(run_jobs: Run) -> Callable[..., tuple[list[Tokens], str]]:
    """``generate(model, environment={}, **settings)``: the tokens of each round, and the log."""

    def run(model: Path, environment: dict[str, str] | None = None, **settings: Any) -> tuple[list[Tokens], str]:
        [outcome] = run_jobs([{"model": model} | settings], environment)
        assert outcome.tokens is not None, outcome.log[-6000:]
        return outcome.tokens, outcome.log

    return run


def vllm_environment() -> dict[str, str]:
    """What vLLM needs on a small machine without a network; nothing of the tests' own settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "ATOM_", "VLLM_"))}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    }


@pytest.fixture(scope="session")
def smollm2_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model in float32, as a folder of safetensors."""
    from atom_models import resolve_model
    from tests.conformance.checkpoint_folder import write_checkpoint_folder

    return write_checkpoint_folder(resolve_model("smollm2"), tmp_path_factory.mktemp("smollm2") / "smollm2")


@pytest.fixture(scope="session")
def stock(generate: Callable[..., tuple[list[Tokens], str]], smollm2_folder: Path) -> Tokens:
    """What vLLM without us makes of the default model."""
    [tokens], log = generate(smollm2_folder, STOCK)
    assert lines_of_ours(log) == []
    return tokens


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``tiny(family)``: a random model with the smallest heads that vLLM's own attention takes on a CPU."""
    from tiny_architectures import make_tiny

    made: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in made:
            size: dict[str, int] = {"head_dim": 32}
            if family == "qwen2":
                size = {"hidden_size": 192}  # its heads share the hidden size
            elif family.startswith(("deepseek", "glm4_moe_lite", "kimi")):
                size = {}  # latents: no head has a size of its own
            made[family] = make_tiny(family, tmp_path_factory.mktemp("tiny") / family, **size)
        return made[family]

    return make


@pytest.fixture(scope="session")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny DeepSeek V3 whose latents are as long as published ones: vLLM has kernels for no others."""
    from tiny_architectures import make_tiny

    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}
    return make_tiny("deepseek_v3", tmp_path_factory.mktemp("latent") / "deepseek_v3", **sizes)
