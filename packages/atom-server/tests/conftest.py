"""A real server on a tiny float32 Llama, shared by all tests of this package."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from atom_server import ServerOptions
from atom_server.output.output_format import OutputFormat
from running_server import START_SECONDS, Front, RunningServer


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Commands that a test runs in this process set up logging for all of it."""
    loggers = [logging.getLogger(name) for name in ("", "atom_server", "atom_core", "atom_models", "atom_kernels")]
    before = [(logger, logger.handlers[:], logger.level) for logger in loggers]
    of_engines = os.environ.get("ATOM_LOG_LEVEL")
    yield
    if of_engines is None:
        os.environ.pop("ATOM_LOG_LEVEL", None)
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def no_certificates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, empty_folder: Path) -> None:
    """httpx reads every certificate of the machine for each client, 25 ms of a request; nobody here speaks TLS."""
    if request.node.get_closest_marker("network") is None:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        monkeypatch.setenv("SSL_CERT_DIR", str(empty_folder))


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing is ever written into it."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="session")
def server(tiny_llama: Path) -> Iterator[RunningServer]:
    """The server that most tests talk to."""
    with RunningServer(tiny_llama) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[OpenAI]:
    """The official client."""
    with server.client() as official:
        yield official


@pytest.fixture
def writes(server: RunningServer) -> Iterator[Callable[..., None]]:
    """``writes(calls=..., reasoning=...)`` makes the server's model write so, as `OutputFormat.infer` has it."""
    before = server.state.output_format

    def become(**settings: Any) -> None:
        server.state.output_format = OutputFormat.infer("", server.engine.tokenizer, **settings)

    yield become
    server.state.output_format = before


@pytest.fixture
def thinking(writes: Callable[..., None]) -> None:
    """Makes the server's model one that thinks between ``<think>`` marks."""
    writes(calls="hermes", reasoning="think")


@pytest.fixture(scope="session")
def make_server(tiny_llama: Path) -> Callable[..., RunningServer]:
    """Builds servers with other settings, or of another model, for ``with``."""

    def make(
        options: ServerOptions | None = None, *, model: Path = tiny_llama, **engine_settings: Any
    ) -> RunningServer:
        return RunningServer(model, options, **engine_settings)

    return make


@pytest.fixture(scope="module")
def two_engines(tiny_llama: Path) -> Iterator[RunningServer]:
    """A server with two engines."""
    with RunningServer(tiny_llama, data_parallel_size=2) as running:
        yield running


@pytest.fixture(scope="session")
def make_front(server: RunningServer) -> Callable[[ServerOptions], Front]:
    """Builds other apps on the engine of `server`, for ``with``: where options of the server are all that differs."""
    return lambda options: Front(server, options)


class ServeProcess:
    """``atom serve`` in a process of its own.

    Attributes:
        url: without a path; known once the banner is out.
    """

    def __init__(self, *flags: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "atom_server", "serve", "--server-port", "0", *flags]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})}
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=variables
        )
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> ServeProcess:
        if not self._ready.wait(START_SECONDS) or not self.url:
            self.__exit__(None)
            raise AssertionError("not ready: " + "\n".join(self.lines))
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        status = self.process.poll()
        if status is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        if failure is not None:
            state = "was running" if status is None else f"had ended with status {status}"
            print(f"The server {state}. Its log:\n{self.text[-20000:]}")
        if self.process.stderr is not None:
            self.process.stderr.close()

    @property
    def text(self) -> str:
        """Everything it has written to stderr."""
        return "\n".join(self.lines)

    def wait_for_text(self) -> None:
        """Until all that an ended process has written is in `text`."""
        self._reader.join(10)

    def _read(self) -> None:
        stream = self.process.stderr
        for line in stream or ():
            self.lines.append(line.rstrip())
            if line.strip().startswith("API ") and "http" in line:
                self.url = line.split()[1].removesuffix("/v1")
            if line.strip().startswith("started in"):
                self._ready.set()
        self._ready.set()


@pytest.fixture(scope="session")
def serve_process(tiny_llama: Path) -> Callable[..., ServeProcess]:
    """Starts ``atom serve`` on the tiny model, for ``with``."""

    def start(*flags: str, **options: Any) -> ServeProcess:
        common = ("--model", str(tiny_llama), "--dtype", "float32", "--num-threads", "1", "--num-kv-blocks", "256")
        return ServeProcess(*common, *flags, **options)

    return start
