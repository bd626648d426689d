"""How many cores this process may use: its affinity, and the CPU quotas of its control groups. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PROC_CGROUP, _CGROUP_ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores that this process may keep busy, at least 1: a quota of 1.5 cores lets one thread run all the time."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota()
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def cgroup_quota(membership: Path = _PROC_CGROUP, root: Path = _CGROUP_ROOT) -> float | None:
    """The smallest CPU quota in cores of the groups that hold this process; None where there is none.

    Args:
        membership: what Linux keeps in ``/proc/self/cgroup``.
        root: where the groups are mounted; version 2 in it or in ``unified``, version 1 in ``cpu``.
    """
    quotas = [quota for folder in _groups(membership, root) if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _groups(membership: Path, root: Path) -> Iterator[Path]:
    """The folder of each group that limits CPU time, and the folders above it: a quota holds for all groups below."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for mount in (root, root / "unified") if not controllers else (root / "cpu", root / controllers):
            # A container sees its own group as the root, while the path may still be the host's.
            group = mount / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(mount))


def _quota_of(group: Path) -> float | None:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota = (group / "cpu.cfs_quota_us").read_text().strip()
            period = (group / "cpu.cfs_period_us").read_text().strip()
    except (OSError, ValueError):
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
