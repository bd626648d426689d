"""How much memory there is, by the kernel's list and by the limits of a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom_core.host_memory import available_memory, total_memory

MEMINFO = "MemTotal:       16000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n"


def make_root(folder: Path, **files: str) -> Path:
    places = {"meminfo": "proc/meminfo", "limit": "sys/fs/cgroup/memory.max", "used": "sys/fs/cgroup/memory.current"}
    for name, text in files.items():
        path = folder / places[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 9000 * 1024),
        ({"limit": "max\n", "used": "5\n"}, 9000 * 1024),
        ({"limit": "6000000\n", "used": "1000000\n"}, 5_000_000),
        ({"limit": "6000000000\n", "used": "1000\n"}, 9000 * 1024),
        ({"limit": "1000\n", "used": "2000\n"}, 0),
    ],
)
def test_a_process_can_take_what_the_machine_and_its_control_group_have_left(
    files: dict[str, str], free: int, tmp_path: Path
):
    root = make_root(tmp_path, meminfo=MEMINFO, **files)
    assert (total_memory(root), available_memory(root)) == (16000 * 1024, free)


@pytest.mark.parametrize("files", [{}, {"meminfo": "MemTotal: some\nMemAvailable:\n"}])
def test_memory_that_the_kernel_does_not_tell_is_unknown(files: dict[str, str], tmp_path: Path):
    root = make_root(tmp_path, **files)
    assert (total_memory(root), available_memory(root)) == (None, None)
