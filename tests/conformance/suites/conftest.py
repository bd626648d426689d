"""What every suite is told about the server that it tests."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

# By its path: an environment of a client has no package `tests`, or somebody else's.
SERVER = Path(__file__).parents[1] / "server.py"


@pytest.fixture(scope="session")
def url() -> str:
    """The server, without a path."""
    return os.environ["ATOM_URL"]


@pytest.fixture(scope="session")
def model() -> str:
    """The name that the server gives its model."""
    return os.environ["ATOM_MODEL"]


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """A folder with the same weights and tokenizer, for tools that load them."""
    return Path(os.environ["ATOM_CHECKPOINT"])


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Starts another server, with the flags given, and gives its URL; it ends with the module's tests.

    It is for suites that make a model by the client, which the one server of all suites does not have.
    """
    running_server = runpy.run_path(str(SERVER))["running_server"]
    with ExitStack() as servers:

        def start(*flags: object) -> str:
            log = tmp_path_factory.mktemp("server") / "server.log"
            command = [*map(str, flags), "--dtype", "float32", "--log-level", "warning"]
            return servers.enter_context(running_server(command, log, python=os.environ["ATOM_PYTHON"]))

        yield start
