"""The environment variables that this package reads, and the one that it hands on; nothing else here looks at them."""

from __future__ import annotations

import os
from collections.abc import Iterable

# Variables of flags that packages read by themselves too, in processes that parse no flags.
READ_WITHOUT_FLAGS = frozenset({"ATOM_ADMIN_KEY", "ATOM_API_KEY", "ATOM_LOG_LEVEL", "ATOM_TORCH_PROFILER_DIR"})


def api_key() -> str | None:
    """``ATOM_API_KEY``: the bearer token that requests must carry, where ``--api-key`` gives none."""
    return os.environ.get("ATOM_API_KEY") or None


def admin_key() -> str | None:
    """``ATOM_ADMIN_KEY``: the bearer token of admin routes, where ``--admin-key`` gives none."""
    return os.environ.get("ATOM_ADMIN_KEY") or None


def debug() -> bool:
    """``ATOM_DEBUG``: show tracebacks of errors that are otherwise told in one line."""
    return os.environ.get("ATOM_DEBUG", "") not in ("", "0")


def take_flag_variables(names: Iterable[str]) -> dict[str, str]:
    """Variables that stand for flags (``ATOM_{FLAG}``), where they are set and not empty.

    They leave the environment: processes that are started later take no flags. Those that packages read anyway stay.
    """
    found = {name: value for name in names if (value := os.environ.get(name, "").strip())}
    for name in found.keys() - READ_WITHOUT_FLAGS:
        os.environ.pop(name)
    if "ATOM_LOG_LEVEL" in found:
        found["ATOM_LOG_LEVEL"] = found["ATOM_LOG_LEVEL"].lower()
    return found


def is_completing() -> bool:
    """``_ARGCOMPLETE``: a shell asks what may come next on the command line."""
    return "_ARGCOMPLETE" in os.environ


def save_to_pytorch_benchmark_format() -> bool:
    """``SAVE_TO_PYTORCH_BENCHMARK_FORMAT``: write the PyTorch benchmark format beside each result, as vLLM does."""
    return os.environ.get("SAVE_TO_PYTORCH_BENCHMARK_FORMAT", "") not in ("", "0")


def environment_with_openai_key(key: str | None) -> dict[str, str]:
    """``OPENAI_API_KEY``: what lm-eval sends a server; `atom bench accuracy` hands it the key of ``ATOM_API_KEY``."""
    return {**os.environ, "OPENAI_API_KEY": key or os.environ.get("OPENAI_API_KEY") or "none"}


def default_engine_log_level(level: str) -> None:
    """Make the engine's process log as this one does, unless ``ATOM_LOG_LEVEL`` says otherwise."""
    os.environ.setdefault("ATOM_LOG_LEVEL", level.upper())
