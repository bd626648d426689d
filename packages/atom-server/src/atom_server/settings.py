"""The environment variables that this package reads, and the one that it hands on; nothing else here looks at them."""

from __future__ import annotations

import os


def api_key() -> str | None:
    """``ATOM_API_KEY``: the bearer token that requests must carry, where ``--api-key`` gives none."""
    return os.environ.get("ATOM_API_KEY") or None


def admin_key() -> str | None:
    """``ATOM_ADMIN_KEY``: the bearer token of admin routes, where ``--admin-key`` gives none."""
    return os.environ.get("ATOM_ADMIN_KEY") or None


def debug() -> bool:
    """``ATOM_DEBUG``: show tracebacks of errors that are otherwise told in one line."""
    return os.environ.get("ATOM_DEBUG", "") not in ("", "0")


def save_to_pytorch_benchmark_format() -> bool:
    """``SAVE_TO_PYTORCH_BENCHMARK_FORMAT``: write the PyTorch benchmark format beside each result, as vLLM does."""
    return os.environ.get("SAVE_TO_PYTORCH_BENCHMARK_FORMAT", "") not in ("", "0")


def processes_of_torchrun() -> int:
    """How many processes torchrun started, as ``WORLD_SIZE`` says where ``TORCHELASTIC_RUN_ID`` is set; else 1."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() and "TORCHELASTIC_RUN_ID" in os.environ else 1


def default_engine_log_level(level: str) -> None:
    """Make the engine's process log as this one does, unless ``ATOM_LOG_LEVEL`` says otherwise."""
    os.environ.setdefault("ATOM_LOG_LEVEL", level.upper())
