"""Sums over ranks on several GPUs, in a graph: ours, NCCL and torch's symmetric memory, with a norm and apart."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from atom_core.settings import rank_environment
from benchmarks import machine, report

BYTES = (8 << 10, 32 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20)
HIDDEN = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks all-reduce`."""
    parser.add_argument("--ranks", type=int, default=2, help="GPUs, the first of this host (default 2)")
    parser.add_argument("--bytes", type=int, nargs="+", default=list(BYTES), help=f"of rows of {HIDDEN} in bfloat16")
    parser.add_argument("--save-limits", action="store_true", help="also file which kernel is best up to which size")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure with a process for each rank, print a table and keep the result; 1 if a rank failed or summed wrongly."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "measured.json"
        settings = json.dumps({"bytes": options.bytes, "hidden": HIDDEN, "output": str(output)})
        command = [sys.executable, "-m", "benchmarks.all_reduce_rank", str(Path(folder) / "store"), str(options.ranks)]
        environment = rank_environment(1)
        ranks = [subprocess.Popen([*command, str(rank), settings], env=environment) for rank in range(options.ranks)]
        if not _all_succeed(ranks):
            return 1
        measured = json.loads(output.read_text())
    document: dict[str, Any] = {
        "benchmark": f"all-reduce-{options.ranks}-gpus",
        "machine": machine.describe(options.commit) | machine.device(),
        "settings": {"ranks": options.ranks, "hidden": HIDDEN, "dtype": "bfloat16"},
        **measured,
    }
    print("\n" + all_reduce_table(document))
    if options.save_limits:
        print(f"\nlimits: {save_limits(document)}")
    report.save_unless_doubtful(document, options)
    return 1 if document["mistakes"] else 0


def all_reduce_table(document: dict[str, Any]) -> str:
    """Microseconds of each side by size, in markdown."""
    names = list(document["results"][0]["us"])
    rows = [("bytes", *names)]
    for result in document["results"]:
        cells = (result["us"].get(name) for name in names)
        rows.append((f"{result['bytes']:,}", *("" if cell is None else f"{cell:.1f}" for cell in cells)))
    return report.markdown_table(rows) + f"\n\nNot in order: {document['mistakes'] or 'nothing'}."


def best_limits(results: list[dict[str, Any]], methods: tuple[str, ...]) -> list[tuple[int, str]]:
    """(bytes, method): up to how many bytes each is the quickest, by rising bytes; above them none of them is."""
    found: list[tuple[int, str]] = []
    for method in methods:
        best = [one["bytes"] for one in results if _quickest(one["us"], methods) == method]
        if best and (not found or max(best) > found[-1][0]):
            found.append((max(best), method))
    return found


def save_limits(document: dict[str, Any]) -> Path:
    """File the limits where `atom_kernels.reduce.choice` looks for them."""
    from atom_kernels.platform import detect_platform
    from atom_kernels.reduce.choice import METHODS, OPERATOR, key
    from atom_kernels.tuned.store import TunedRow, save_rows

    limits, platform = best_limits(document["results"], METHODS), detect_platform()
    rows = [TunedRow(num_bytes, {"method": method}) for num_bytes, method in limits]
    return save_rows(OPERATOR, key(document["settings"]["ranks"]), rows, platform.name, arch=platform.arch)


def _quickest(us: dict[str, float], methods: tuple[str, ...]) -> str:
    return min((name for name in (*methods, "NCCL") if name in us), key=us.__getitem__)


def _all_succeed(ranks: list[subprocess.Popen[bytes]]) -> bool:
    """Wait for all; the first that fails ends the others."""
    try:
        while running := [rank for rank in ranks if rank.poll() is None]:
            if any(rank.returncode for rank in ranks):
                return False
            try:
                running[0].wait(1.0)
            except subprocess.TimeoutExpired:
                continue
        return not any(rank.returncode for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
