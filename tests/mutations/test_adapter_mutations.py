"""Mistakes in AITER's adapters: there are many, each is a program, and the tests find those of a sample."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from source_tree import ROOT
from tools import mutate_adapters as tool
from tools.adapter_mutations import ADAPTERS, Mutation, all_mutations, mutations_of


@pytest.fixture(scope="module")
def mutations() -> list[Mutation]:
    return all_mutations()


def test_there_are_enough_mistakes_of_every_kind(mutations: list[Mutation]):
    kinds = Counter(mutation.kind for mutation in mutations)
    assert len(mutations) >= 60
    assert set(kinds) == {
        "arguments",
        "choice",
        "comparison",
        "enum",
        "layout",
        "left out",
        "limit",
        "off by one",
        "scale",
        "skipped packing",
        "truth",
    }


def test_every_mistake_changes_its_file_and_is_a_program(mutations: list[Mutation]):
    for mutation in mutations:
        ast.parse(mutation.apply())
        assert mutation.before != mutation.after, str(mutation)


def test_every_adapter_has_tests_that_exist(mutations: list[Mutation]):
    tests = {test for mutation in mutations for test in tool.tests_of(mutation.path)}
    assert [test for test in tests if not Path(test).is_file()] == []
    adapters = {mutation.path.relative_to(ADAPTERS).with_suffix("").as_posix() for mutation in mutations}
    assert [key for key in tool.TESTS_OF if key and not any(name.startswith(key) for name in adapters)] == []


def test_every_harmless_mistake_is_still_one_that_could_be_made(mutations: list[Mutation]):
    assert len({tool.reason_of(mutation) for mutation in mutations} - {None}) == len(set(tool.HARMLESS.values()))
    assert sum(tool.reason_of(mutation) is not None for mutation in mutations) >= len(tool.HARMLESS)


def test_a_sample_is_spread_over_all(mutations: list[Mutation]):
    sample = tool.spread(mutations, 40)
    assert len(sample) == 40 == len(set(sample))
    assert len({mutation.path for mutation in sample}) > 8


def test_swaps_drops_and_flips_are_made_of_a_file(tmp_path: Path):
    file = tmp_path / "adapter.py"
    file.write_text(
        "def run(self, x):\n"
        "    call = library().bind('f', 'k_scale', 'v_scale', causal=True)\n"
        "    return call(shuffle(x.permute(0, 2, 1)), self.scale)\n"
    )
    edits = {(mutation.before, mutation.after) for mutation in mutations_of(file)}
    assert edits == {
        ("'k_scale', 'v_scale'", "'v_scale', 'k_scale'"),
        ("True", "False"),
        ("shuffle(x.permute(0, 2, 1))", "x.permute(0, 2, 1)"),
        ("x.permute(0, 2, 1)", "x"),
        ("0, 2", "2, 0"),
        ("2, 1", "1, 2"),
        ("self.scale", "(2.0 * self.scale)"),
    }


@pytest.mark.slow
def test_the_tests_find_a_sample_of_the_mistakes():
    command = [sys.executable, "-m", "tools.mutate_adapters", "--kind", "arguments", "layout", "skipped", "enum"]
    run = subprocess.run(
        [*command, "--sample", "12"], cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "12    12   100.0 %" in run.stdout
