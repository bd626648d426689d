"""The suites whose clients the development environment has run in every test run, on a tiny model."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

from tests.conformance.environments import pytest_command
from tests.conformance.server import running_server
from tests.conformance.suite import Suite, all_suites


def is_at_hand(suite: Suite) -> bool:
    try:
        return not suite.uses_node and version(suite.client[0]) == suite.client[1]
    except PackageNotFoundError:
        return False


AT_HAND = [suite for suite in all_suites() if is_at_hand(suite)]


@pytest.fixture(scope="module")
def facts(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What suites are told about a server of a tiny model."""
    flags = ["--model", str(tiny_llama), "--served-model-name", "tiny", "--num-threads", "1", "--num-kv-blocks", "256"]
    with running_server(flags, tmp_path_factory.mktemp("logs") / "server.log") as url:
        yield {
            "ATOM_URL": url,
            "ATOM_MODEL": "tiny",
            "ATOM_CHECKPOINT": str(tiny_llama),
            "ATOM_PYTHON": sys.executable,
        }


def test_openais_and_anthropics_clients_are_at_hand():
    assert {suite.client[0] for suite in AT_HAND} >= {"openai", "anthropic"}


@pytest.mark.parametrize("suite", AT_HAND, ids=lambda suite: suite.name)
def test_the_suite_passes(suite: Suite, facts: dict[str, str]):
    command = pytest_command(suite, Path(sys.executable))
    done = subprocess.run(
        command, env={**os.environ, **facts}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout.splitlines()[-1]
