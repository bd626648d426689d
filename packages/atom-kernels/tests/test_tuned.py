"""Tuned configurations: kept as data, found by device, operator, problem and rows."""

from __future__ import annotations

import json

import pytest

from atom_kernels.tuned import TunedRow, pick_row, tuned_rows
from atom_kernels.tuned.store import FOLDER, save_rows

ROWS = (TunedRow(4, {"block_m": 16}), TunedRow(None, {"block_m": 64}))


@pytest.fixture
def folder(tmp_path):
    save_rows("moe_experts", "8x2", ROWS, "NVIDIA H100", tmp_path)
    return tmp_path


def test_saved_rows_are_found_again_on_the_same_device_only(folder):
    assert tuned_rows("moe_experts", "8x2", "NVIDIA H100", folder) == ROWS
    assert tuned_rows("moe_experts", "8x2", "NVIDIA H200", folder) == ()
    assert tuned_rows("moe_experts", "8x3", "NVIDIA H100", folder) == ()
    assert tuned_rows("linear", "8x2", "NVIDIA H100", folder) == ()


def test_saving_replaces_one_key_and_leaves_the_others(folder):
    other = (TunedRow(None, {"block_m": 32}),)
    save_rows("linear", "64x64", other, "NVIDIA H100", folder)
    save_rows("moe_experts", "8x2", other, "NVIDIA H100", folder)
    assert tuned_rows("linear", "64x64", "NVIDIA H100", folder) == other
    assert tuned_rows("moe_experts", "8x2", "NVIDIA H100", folder) == other


def test_the_first_row_that_is_large_enough_serves_a_call():
    assert [pick_row(ROWS, num_rows) for num_rows in (1, 4, 5)] == [ROWS[0], ROWS[0], ROWS[1]]
    assert pick_row((), 1) is None
    assert pick_row(ROWS[:1], 5) is None


def test_the_configurations_that_are_shipped_rise_and_end_with_any_number_of_rows():
    for path in FOLDER.glob("*.json"):
        for keys in json.loads(path.read_text())["operators"].values():
            for key, rows in keys.items():
                limits = [row["max_rows"] for row in rows]
                assert limits[:-1] == sorted(set(limits[:-1])), f"{path.name}: {key}"
                assert None not in limits[:-1], f"{path.name}: {key}"
