"""Every environment variable that this package reads, each behind one function."""

from __future__ import annotations

import os
from pathlib import Path


def profiler_dir() -> str | None:
    """``ATOM_TORCH_PROFILER_DIR``: where profiler traces go when no option says so."""
    return os.environ.get("ATOM_TORCH_PROFILER_DIR", "").strip() or None


def profiler_more() -> bool:
    """Whether ``ATOM_PROFILER_MORE`` asks for shapes, stacks and memory in traces."""
    return os.environ.get("ATOM_PROFILER_MORE", "").strip().lower() in ("1", "true", "yes", "on")


def log_level() -> str:
    """``ATOM_LOG_LEVEL`` of the engine process: DEBUG, INFO, WARNING or ERROR; INFO unless set to one of them."""
    level = os.environ.get("ATOM_LOG_LEVEL", "").strip().upper()
    return level if level in ("DEBUG", "INFO", "WARNING", "ERROR") else "INFO"


def omp_num_threads() -> int | None:
    """``OMP_NUM_THREADS``, which bounds the threads of compute where it is set to a number."""
    text = os.environ.get("OMP_NUM_THREADS", "").strip()
    return int(text) if text.isdigit() and int(text) > 0 else None


def child_environment(num_threads: int | None) -> dict[str, str]:
    """The environment of the engine's process; `num_threads` None leaves its threads to what this one was given."""
    return {**os.environ} if num_threads is None else {**os.environ, "OMP_NUM_THREADS": str(num_threads)}


def rank_environment(num_threads: int) -> dict[str, str]:
    """Ranks talk over the loopback interface, unless ``GLOO_SOCKET_IFNAME`` or ``NCCL_SOCKET_IFNAME`` names another.

    gloo and NCCL authenticate nobody, so no other machine may reach their ports. What ranks share of their memory is
    not multicast, unless ``TORCH_SYMM_MEM_DISABLE_MULTICAST`` says so: no kernel of ours makes use of it. Returns the
    environment of a rank.
    """
    defaults = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1"}
    return {**defaults, **child_environment(num_threads)}


def cache_dir() -> Path:
    """What can be made again: ``ATOM_CACHE_DIR``, ``$XDG_CACHE_HOME/atom`` or ``~/.cache/atom``."""
    own = os.environ.get("ATOM_CACHE_DIR", "").strip()
    if own:
        return Path(own).expanduser()
    root = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(root) if root else Path.home() / ".cache") / "atom"


def keep_compiled_in(folder: Path) -> Path:
    """Have inductor keep its files in `folder`, unless ``TORCHINDUCTOR_CACHE_DIR`` names another.

    Returns the folder that it is.

    Raises:
        OSError: it cannot be made.
    """
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        folder.mkdir(parents=True, exist_ok=True)
    return Path(os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder)))


def tokenize_in_calling_thread() -> None:
    """Have texts tokenized in the thread that asks, unless ``TOKENIZERS_PARALLELISM`` says otherwise.

    In the library's own pool of threads long texts would keep short ones waiting.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
