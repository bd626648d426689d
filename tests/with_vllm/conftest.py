"""An environment with vLLM, and what it generates there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 600

Tokens = list[list[int]]
Generate = Callable[..., tuple[list[Tokens], str]]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vllm-python", help="the Python of an environment with vLLM and our packages")


@pytest.fixture(scope="session")
def vllm_python(request: pytest.FixtureRequest) -> str:
    python = request.config.getoption("--vllm-python", default=None)
    return python or pytest.skip("needs an environment with vLLM: make test-vllm")


@pytest.fixture(scope="session")
def generate(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Generate:
    """``generate(model, environment={}, **settings)``: the tokens of each round, and the log."""
    folder = tmp_path_factory.mktemp("tokens")

    def run(model: Path, environment: dict[str, str] | None = None, **settings: Any) -> tuple[list[Tokens], str]:
        output = folder / "tokens.json"
        output.unlink(missing_ok=True)
        command = [vllm_python, str(Path(__file__).parent / "generate.py"), str(model), str(output)]
        done = subprocess.run(
            [*command, json.dumps({"num_tokens": 64} | settings)],
            env=vllm_environment() | (environment or {}),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        log = done.stdout + done.stderr
        assert done.returncode == 0, log[-6000:]
        return json.loads(output.read_text()), log

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
def stock(generate: Generate, smollm2_folder: Path) -> Tokens:
    """What vLLM without us makes of the default model."""
    [tokens], log = generate(smollm2_folder, {"ATOM_DISABLE_VLLM_PLUGIN": "1"})
    assert "atom" not in log.replace("atom -> atom_vllm", "").replace("atom_model_registry -> atom_vllm", "")
    return tokens
