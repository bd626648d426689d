"""The benchmark of sums over ranks: what it tells, and which limits it files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atom_kernels.reduce.choice import METHODS
from atom_kernels.tuned import store
from benchmarks import all_reduce


def result(num_bytes: int, **us: float):
    return {"bytes": num_bytes, "us": {name.replace("_", " "): each for name, each in us.items()}}


RESULTS = [
    result(8192, NCCL=11.0, packets=4.0, one_shot=6.0, two_shots=7.0),
    result(262144, NCCL=13.0, packets=8.0, one_shot=7.5, two_shots=7.8),
    result(524288, NCCL=15.0, packets=12.0, one_shot=7.9, two_shots=7.9),
    result(4194304, NCCL=40.0, one_shot=45.0, two_shots=44.0),
]


def test_limits_are_the_largest_sizes_at_which_a_kernel_is_the_quickest():
    assert all_reduce.best_limits(RESULTS, METHODS) == [(8192, "packets"), (524288, "one shot")]


def test_limits_are_filed_where_the_choice_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store.save_rows, "__defaults__", (tmp_path,))
    path = all_reduce.save_limits({"results": RESULTS, "settings": {"ranks": 2}})
    assert path.parent == tmp_path
    [found] = [rows for key, rows in store.tuned_on_arch("all_reduce", _arch(), tmp_path).items() if key == "2 ranks"]
    assert [(row.max_rows, row.config["method"]) for row in found] == [(8192, "packets"), (524288, "one shot")]


def test_the_table_has_a_row_of_microseconds_for_each_size():
    table = all_reduce.all_reduce_table({"results": RESULTS, "mistakes": []})
    assert "| 8,192     | 11.0 |" in table
    assert "Not in order: nothing." in table


def test_the_first_rank_that_fails_ends_the_others():
    quick, slow = (subprocess.Popen([sys.executable, "-c", code]) for code in ("raise SystemExit(1)", _WAIT))
    assert not all_reduce._all_succeed([slow, quick])
    assert slow.wait(5) != 0


_WAIT = "import time; time.sleep(60)"


def _arch() -> str:
    from atom_kernels.platform import detect_platform

    return detect_platform().arch
