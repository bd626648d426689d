"""The memory of this machine, as the kernel and the control group of this process tell it. Torch-free."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path("/")


def total_memory(root: Path = _ROOT) -> int | None:
    """Bytes of the machine; None where the kernel does not say. `root` is that of the file system."""
    return _meminfo(root, "MemTotal")


def available_memory(root: Path = _ROOT) -> int | None:
    """Bytes that this process could still take; None where the kernel does not say."""
    free = _meminfo(root, "MemAvailable")
    limit, used = (_number(root / "sys/fs/cgroup" / name) for name in ("memory.max", "memory.current"))
    if free is None or limit is None or used is None:
        return free
    return min(free, max(limit - used, 0))


def _meminfo(root: Path, key: str) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
