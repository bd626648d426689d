"""Every environment variable that this package reads, each behind one function."""

from __future__ import annotations

import os


def profiler_dir() -> str | None:
    """``ATOM_TORCH_PROFILER_DIR``: where profiler traces go when no option says so."""
    return os.environ.get("ATOM_TORCH_PROFILER_DIR", "").strip() or None


def profiler_more() -> bool:
    """Whether ``ATOM_PROFILER_MORE`` asks for shapes, stacks and memory in traces."""
    return os.environ.get("ATOM_PROFILER_MORE", "").strip().lower() in ("1", "true", "yes", "on")


def log_level() -> str:
    """``ATOM_LOG_LEVEL`` of the engine process: a name of the logging module, INFO unless set."""
    return os.environ.get("ATOM_LOG_LEVEL", "").strip().upper() or "INFO"


def child_environment(num_threads: int) -> dict[str, str]:
    """The environment of a process that computes with `num_threads` threads."""
    return {**os.environ, "OMP_NUM_THREADS": str(num_threads)}
