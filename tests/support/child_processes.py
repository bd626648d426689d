"""The processes that a process started, as `/proc` lists them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def children_of(pid: int, module: str = "") -> list[int]:
    """Ids of the processes that any thread of `pid` started, oldest first: all of them, or those that run `module`."""
    return sorted(child for child in _children(pid) if module.encode() in _read(Path(f"/proc/{child}/cmdline")))


def _children(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        yield from map(int, _read(thread / "children").split())


def _read(file: Path) -> bytes:
    """What `file` says; nothing once its thread or process has ended, which it may do at any time."""
    try:
        return file.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
