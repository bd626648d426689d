"""The servers of both engines, with the same limits, and what they tell of themselves."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.engines import MAX_BATCHED_TOKENS, MEMORY_SHARE
from benchmarks.server_process import ServerProcess, free_port

MAX_NUM_SEQS = 512
# Compiling a model with cold caches takes the peer minutes.
START_SECONDS = 400.0


class Late(NamedTuple):
    """What steps have waited for so far."""

    compilations: int
    captures: int


def start_server(
    engine: str, model: Path, *, max_model_len: int, settings: Mapping[str, Any], environment: Mapping[str, str]
) -> ServerProcess:
    """The server of "atom" or "vllm" over dummy weights; returns when it says that it is ready.

    Args:
        settings: what ours is given beside the limits, by name.
        environment: what the process of the server gets.
    """
    port = free_port()
    limits = {
        "dtype": "bfloat16", "max-model-len": max_model_len, "max-num-seqs": MAX_NUM_SEQS,
        "max-num-batched-tokens": MAX_BATCHED_TOKENS, "gpu-memory-utilization": MEMORY_SHARE,
    }  # fmt: skip
    if engine == "atom":
        command = [sys.executable, "-m", "atom_server", "serve", "--server-port", str(port), "--load-dummy"]
        command += ["--log-level", "warning", *_flags(limits | {_flag(name): settings[name] for name in settings})]
    else:
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--port", str(port)]
        command += ["--host", "127.0.0.1", "--load-format", "dummy", *_flags(limits)]
    command += ["--model", str(model)]
    ready = "/ready" if engine == "atom" else "/health"
    return ServerProcess(command, port, ready=ready, start_seconds=START_SECONDS, environment=environment)


def version_of(port: int) -> str:
    """Both servers tell it."""
    return _told(port, "/version")["version"]


def served_name(port: int) -> str:
    """The model's name in requests."""
    return _told(port, "/v1/models")["data"][0]["id"]


def late_of(port: int) -> Late | None:
    """None of a server that does not count it."""
    try:
        engines = _told(port, "/server_info")["engines"]
        counts = [engine["stats"] or {} for engine in engines]
    except (urllib.error.HTTPError, KeyError):
        return None
    return Late(*(sum(count.get(f"num_late_{name}", 0) for count in counts) for name in Late._fields))


def _told(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.load(answer)


def _flag(name: str) -> str:
    return name.replace("_", "-")


def _flags(values: Mapping[str, Any]) -> list[str]:
    """Flags of these values; true is a flag alone."""
    flags: list[str] = []
    for name, value in values.items():
        flags += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return flags
