"""Tuned configurations: kept as data, found by device, operator, problem and rows."""

from __future__ import annotations

import json

import pytest

from atom_kernels.tuned import TunedRow, store, tuned_on_arch, tuned_rows
from atom_kernels.tuned.store import FOLDER, save_rows
from atom_kernels.tuned.tuner import Subject, tune

ROWS = (TunedRow(4, {"block_m": 16}), TunedRow(None, {"block_m": 64}))


@pytest.fixture
def folder(tmp_path):
    save_rows("moe_experts", "8x2", ROWS, "NVIDIA H100", tmp_path)
    return tmp_path


def test_saved_rows_are_found_again_on_the_same_device_only(folder):
    assert tuned_rows("moe_experts", "8x2", "NVIDIA H100", folder) == ROWS
    assert tuned_rows("moe_experts", "8x2", "NVIDIA H200", folder) is None
    assert tuned_rows("moe_experts", "8x3", "NVIDIA H100", folder) is None
    assert tuned_rows("linear", "8x2", "NVIDIA H100", folder) is None


def test_what_was_tuned_on_a_device_is_found_for_its_architecture(folder):
    other = (TunedRow(None, {"block_m": 32}),)
    save_rows("moe_experts", "8x2", ROWS, "NVIDIA H100", folder, arch="sm_90")
    save_rows("moe_experts", "8x3", other, "NVIDIA H100", folder)
    save_rows("moe_experts", "8x2", other, "NVIDIA A100", folder, arch="sm_80")
    assert tuned_on_arch("moe_experts", "sm_90", folder) == {"8x2": ROWS, "8x3": other}
    assert tuned_on_arch("moe_experts", "sm_80", folder) == {"8x2": other}
    assert tuned_on_arch("linear", "sm_90", folder) == {}


def test_this_triton_comes_before_others_and_newer_ones_before_older(folder, monkeypatch):
    for release, block in (("3.10", 16), ("3.9", 32)):
        monkeypatch.setattr(store, "triton_release", lambda release=release: release)
        save_rows("linear", "64x64", (TunedRow(None, {"block_m": block}),), "NVIDIA H100", folder, arch="sm_90")
    for release, block in (("3.9", 32), ("3.10", 16), ("4.0", 16)):
        monkeypatch.setattr(store, "triton_release", lambda release=release: release)
        tuned_on_arch.cache_clear()
        assert tuned_on_arch("linear", "sm_90", folder)["64x64"][0].config == {"block_m": block}


def test_saving_replaces_one_key_and_leaves_the_others(folder):
    other = (TunedRow(None, {"block_m": 32}),)
    save_rows("linear", "64x64", other, "NVIDIA H100", folder)
    save_rows("moe_experts", "8x2", other, "NVIDIA H100", folder)
    assert tuned_rows("linear", "64x64", "NVIDIA H100", folder) == other
    assert tuned_rows("moe_experts", "8x2", "NVIDIA H100", folder) == other


def test_rows_below_the_least_that_was_tried_again_stay(folder):
    again = (TunedRow(8, {"block_m": 32}),)
    save_rows("moe_experts", "8x2", again, "NVIDIA H100", folder, tuned_from=8)
    assert tuned_rows("moe_experts", "8x2", "NVIDIA H100", folder) == (ROWS[0], *again)
    save_rows("moe_experts", "8x2", (), "NVIDIA H100", folder, tuned_from=8)
    assert tuned_rows("moe_experts", "8x2", "NVIDIA H100", folder) == ROWS[:1]


def test_a_key_whose_rival_was_always_faster_is_not_one_at_which_nobody_looked(folder):
    save_rows("linear", "64x64", (), "NVIDIA H100", folder)
    assert tuned_rows("linear", "64x64", "NVIDIA H100", folder) == ()
    save_rows("linear", "32x32", (), "NVIDIA H100", folder, tuned_from=8)
    assert tuned_rows("linear", "32x32", "NVIDIA H100", folder) is None


def test_the_configurations_that_are_shipped_rise_and_end_with_any_number_of_rows():
    for path in FOLDER.glob("*.json"):
        for keys in json.loads(path.read_text())["operators"].values():
            for key, rows in keys.items():
                limits = [row["max_rows"] for row in rows]
                assert limits[:-1] == sorted(set(limits[:-1])), f"{path.name}: {key}"
                assert None not in limits[:-1], f"{path.name}: {key}"


class FakeKernel(Subject):
    """Two parts; block 7 cannot run, and block 4 is best from 16 rows on, 2 before."""

    def candidates(self, num_rows):
        return {"first": [{"block": block} for block in (2, 4, 7)], "second": [{"block": 2}]}

    def calls(self, part, config, num_rows):
        def call():
            if config["block"] == 7:
                raise RuntimeError("out of resources\nand more words")
            return abs(config["block"] - (4 if num_rows >= 16 else 2)) + 1

        return [call]

    def join(self, best):
        return {part: config["block"] for part, config in best.items()}


class KernelWithRival(FakeKernel):
    """A rival that a second part beats at 8 rows only, and the first part, whose best takes 1, nowhere."""

    def rival(self, part, num_rows):
        return [lambda: 1.5 if part == "second" and num_rows == 8 else 1]


def test_the_tuner_keeps_the_fastest_candidate_of_each_part_that_runs():
    trials = []
    rows = tune(FakeKernel(), (1, 16), trials.append, measure=lambda calls: calls[0](), num_threads=2)
    assert rows == (TunedRow(1, {"first": 2, "second": 2}), TunedRow(None, {"first": 4, "second": 2}))
    assert {trial.failure for trial in trials if trial.config["block"] == 7} == {"RuntimeError: out of resources"}


def test_a_rival_serves_what_is_past_the_last_rows_at_which_a_part_beats_it():
    trials = []
    rows = tune(KernelWithRival(), (1, 8, 16), trials.append, measure=lambda calls: calls[0](), num_threads=2)
    assert [row.max_rows for row in rows] == [1, 8]
    assert [trial.microseconds for trial in trials if "rival" in trial.config] == [1e6, 1e6, 1e6, 1.5e6, 1e6, 1e6]


def test_nothing_is_found_at_rows_where_a_rival_is_never_beaten():
    kernel = KernelWithRival()
    assert tune(kernel, (1, 16), lambda trial: None, measure=lambda calls: calls[0](), num_threads=1) == ()
