"""What a result was measured on, and whether anything else was running there."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

QUIET_IDLE_SHARE = 0.93
PACKAGES = ("torch", "transformers", "atom-kernels", "atom-models", "atom-core", "atom-server")


def describe(known_commit: str | None = None) -> dict[str, Any]:
    """CPU, versions, commit and date, as JSON values; `known_commit` where git is not there to tell it."""
    return {
        "cpu": cpu_name(),
        "cpu_flags": [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd") if flag in _cpu_flags()],
        "num_cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "commit": known_commit or commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def device() -> dict[str, str]:
    """The accelerator's name as {"device": name}; empty without one. Asks its driver, not torch: no memory is taken."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"device": done.stdout.splitlines()[0].strip()}


def cpu_name() -> str:
    """The CPU's own name, e.g. "AMD EPYC"."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def commit() -> str | None:
    """Short hash of the checkout, with "+" where tracked files differ from it; None outside a checkout."""
    folder = Path(__file__).parent
    short = _git(folder, "rev-parse", "--short", "HEAD")
    if short is None:
        return None
    return short + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def add_dtype_flag(parser: argparse.ArgumentParser) -> None:
    """A flag for the number format of weights and products; see `choose_dtype`."""
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), help="default: the one that the engine chooses on this machine"
    )


def choose_dtype(options: argparse.Namespace) -> None:
    """Where no format was asked for, take the one that is quick here: many CPUs compute bfloat16 very slowly."""
    from atom_kernels.platform import detect_platform

    options.dtype = options.dtype or detect_platform().preferred_dtype


def model_path(model: str) -> Path:
    """The folder or file of a model: a path, or a known name."""
    if Path(model).exists():
        return Path(model)
    from atom_models import resolve_model

    return resolve_model(model)


def idle_share(seconds: float = 1.0) -> float | None:
    """Share of all cores' time in which nothing ran, 0 to 1; None where the system does not say."""
    before = _jiffies()
    time.sleep(seconds)
    after = _jiffies()
    if before is None or after is None or after[0] == before[0]:
        return None
    return 1 - (after[1] - before[1]) / (after[0] - before[0])


class Interference:
    """Measures what share of the cores processes other than this one and `pids` take from its construction on."""

    def __init__(self, pids: Sequence[int] = ()) -> None:
        self._pids = [os.getpid(), *pids]
        self._start = _jiffies()
        self._own = self._own_jiffies()

    def share(self) -> float | None:
        """Share of all cores' time so far that others used, 0 to 1; None where the system does not say."""
        now = _jiffies()
        if now is None or self._start is None or now[0] == self._start[0]:
            return None
        others = now[1] - self._start[1] - (self._own_jiffies() - self._own)
        return max(0.0, others / (now[0] - self._start[0]))

    def _own_jiffies(self) -> int:
        return sum(_jiffies_of(pid) for pid in self._pids)


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor time that these processes have used, in all their threads; 0 where the system does not say."""
    return sum(map(_jiffies_of, pids)) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Processes that any thread of `pid` has started; empty where the system does not say."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for children in lists for child in children.read_text().split()]


def family(pid: int) -> list[int]:
    """`pid`, and every process that descends from it now."""
    return [pid, *(member for child in children(pid) for member in family(child))]


def _jiffies() -> tuple[int, int] | None:
    """(all, busy) clock ticks of all cores since boot."""
    try:
        fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    idle = fields[3] + fields[4]
    return sum(fields), sum(fields) - idle


def _jiffies_of(pid: int) -> int:
    """Clock ticks that a process has run, in all its threads."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _cpuinfo(key: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(key)), None)


def _cpu_flags() -> set[str]:
    return set((_cpuinfo("flags") or _cpuinfo("Features") or "").split())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
