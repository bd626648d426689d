"""How mistakes are chosen, put in, and met by tests."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from source_tree import ROOT
from tools.mutate import choosing, forked, measuring
from tools.mutate.calls import Calls
from tools.mutate.forked import MutatedModule
from tools.mutate.mutation import Mutation, mutations_of
from tools.mutate.operators import GENERAL_OPERATORS
from tools.mutate.parts import PARTS
from tools.mutate.report import Outcome, report, survivors_of_last_run
from tools.mutate.running import Trial
from tools.mutate.sampling import spread

CODE = """
from functools import cache

LIMIT = 3

def fits(a):
    return a < LIMIT

@cache
def size():
    return 1 + LIMIT
"""


def mutations_in(folder: Path, code: str = CODE) -> list[Mutation]:
    path = folder / "src" / "atom_made_up" / "code.py"
    path.parent.mkdir(parents=True)
    path.write_text(code)
    return mutations_of(path, GENERAL_OPERATORS)


@pytest.fixture
def mutations(tmp_path: Path) -> list[Mutation]:
    return mutations_in(tmp_path)


def of(mutations: list[Mutation], before: str) -> Mutation:
    return next(mutation for mutation in mutations if mutation.before == before)


def test_a_module_is_loaded_with_the_mistake_and_its_file_is_left_as_it_was(mutations: list[Mutation]):
    mutation = of(mutations, "a < LIMIT")
    loader = MutatedModule(mutation)
    spec = loader.find_spec("atom_made_up.code")
    assert spec is not None
    assert loader.find_spec("atom_made_up.other") is None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    assert (module.fits(2), module.fits(3), module.fits(4)) == (True, True, False)
    assert mutation.path.read_text() == CODE


def test_a_sample_takes_some_of_every_file_and_the_same_after_an_edit_elsewhere(tmp_path: Path):
    everything = PARTS["scheduler"].mutations
    sample = spread(everything, 60)
    assert len(sample) == 60 == len(set(sample))
    assert {edit.file for edit in sample} == {edit.file for edit in everything}
    before, after = mutations_in(tmp_path / "before"), mutations_in(tmp_path / "after", "# A line above.\n\n" + CODE)
    assert [edit.lot for edit in spread(after, 3)] == [edit.lot for edit in spread(before, 3)]


def test_another_seed_takes_another_sample_and_one_seed_the_same():
    everything = PARTS["scheduler"].mutations
    first, second = spread(everything, 60, seed=1), spread(everything, 60, seed=2)
    assert first == spread(everything, 60, seed=1)
    assert {edit.file for edit in second} == {edit.file for edit in everything}
    assert len(set(first) & set(second)) < 20
    assert len(set(first) & set(spread(everything, 60))) < 20


def test_a_mistake_meets_the_tests_that_call_its_function_those_first_that_call_little_else(mutations: list[Mutation]):
    first, second, third = Path("test_first.py"), Path("test_second.py"), Path("test_third.py")
    much = [f"atom_made_up/other.py: f{number}" for number in range(9)]
    measured = {
        first: {"first::a": (1.0, [*much, "atom_made_up/code.py: fits"]), "first::b": (1.0, [])},
        second: {"second::a": (2.0, ["atom_made_up/code.py: fits", "atom_made_up/code.py: size"])},
        third: {"third::a": (0.5, ["atom_made_up/other.py: f1"])},
    }
    found = choosing.candidates(of(mutations, "a < LIMIT"), measured)
    assert found == [(second, {"second::a": 2.0}), (first, {"first::a": 1.0})]
    # What is remembered from an earlier test may matter to each test of a file that calls something of the source.
    beside = [(first, {"first::a": 1.0, "first::b": 1.0}), (second, {"second::a": 2.0})]
    assert choosing.candidates(of(mutations, "1 + LIMIT"), measured) == beside
    assert choosing.candidates(of(mutations, "3"), {third: measured[third]}) == [(third, {"third::a": 0.5})]
    # Nobody knows what interpreted kernels call: they come last, and for a mistake in a kernel first.
    kernels = Path("triton_kernels/test_kernels.py")
    beside_kernels = {second: measured[second], kernels: {"kernels::a": (4.0, [])}}
    in_code = [(second, {"second::a": 2.0}), (kernels, {"kernels::a": 4.0})]
    assert choosing.candidates(of(mutations, "a < LIMIT"), beside_kernels) == in_code
    path = mutations[0].path.with_name("triton_kernels.py")
    path.write_text(CODE)
    in_kernels = choosing.candidates(replace(of(mutations, "a < LIMIT"), path=path), beside_kernels)
    assert in_kernels == in_code[::-1]


def test_a_mistake_outside_of_functions_meets_the_tests_of_those_that_read_its_name(tmp_path: Path):
    compiler = "atom_core/structured_output/compiler.py"
    assert f"{compiler}: Compilation.overdue" in choosing.readers(compiler, "QUEUE_SECONDS")
    assert choosing.readers(compiler, "_key")
    assert not choosing.readers("atom_kernels/formats/integers.py", "_key")  # a private name is its own file's
    code = mutations_in(tmp_path, "LIMIT_OF_NOBODY = 3\n\nclass OptionsOfNobody:\n    size: int = 4\n")
    for word, before in (("LIMIT_OF_NOBODY", "3"), ("OptionsOfNobody", "4")):
        tests, other = tmp_path / f"test_{word}.py", {Path("test_other.py"): {"other::a": (1.0, [])}}
        tests.write_text(f"def test_it():\n    assert {word}\n")
        measured = {tests: {"code::a": (1.0, [])}, **other}
        assert choosing.candidates(of(code, before), measured, may_guess=False) == [(tests, {"code::a": 1.0})]
        assert choosing.candidates(of(code, before), other, may_guess=False) == []


def test_a_default_of_a_parameter_meets_the_tests_that_name_the_function_too(tmp_path: Path):
    """Those that call it may all give the argument."""
    calls, table = Path("test_calls.py"), tmp_path / "test_table.py"
    table.write_text("DEFAULTS = {'code.fits_nobody': {'most': 5}}\n")
    measured = {
        calls: {"calls::a": (1.0, ["atom_made_up/code.py: fits_nobody"])},
        table: {"table::a": (0.5, [])},
    }
    code = mutations_in(tmp_path, "def fits_nobody(a, most=5):\n    return a < most\n")
    assert choosing.candidates(of(code, "5"), measured) == [(table, {"table::a": 0.5}), (calls, {"calls::a": 1.0})]
    assert choosing.candidates(of(code, "a < most"), measured) == [(calls, {"calls::a": 1.0})]
    # A table of a package's defaults comes first, however much it calls: it is there for this.
    defaults = table.rename(tmp_path / "test_defaults_of_made_up.py")
    measured[defaults] = measured.pop(table) | {"table::a": (9.0, [f"atom_made_up/other.py: f{n}" for n in range(9)])}
    assert choosing.candidates(of(code, "5"), measured) == [(defaults, {"table::a": 9.0}), (calls, {"calls::a": 1.0})]


def test_a_mistake_meets_the_nearest_file_whole_and_some_of_each_other_before_the_slow_tests_of_one():
    first, second, third = Path("test_first.py"), Path("test_second.py"), Path("test_third.py")
    chosen = [
        (first, {"first::a": 2.0, "first::b": 50.0}),
        (second, {"second::a": 1.0, "second::b": 30.0}),
        (third, {"third::a": 2.0}),
    ]
    # A file that is begun counts as a second more: 53 of the first, then 2 and 3.
    assert choosing.within(chosen, limit=88.0) == chosen
    assert choosing.within(chosen, limit=87.9) == [chosen[0], (second, {"second::a": 1.0}), chosen[2]]
    assert choosing.within(chosen, limit=57.9) == [chosen[0], (second, {"second::a": 1.0})]
    assert choosing.within(chosen, limit=0.0) == [chosen[0]]
    assert choosing.within(chosen, limit=float("inf")) == chosen


def test_tests_that_a_part_does_not_name_are_met_if_they_are_known_to_use_the_file(mutations: list[Mutation]):
    first, kernels = Path("test_first.py"), Path("triton_kernels/test_kernels.py")
    uses, other = {"first::a": (1.0, ["atom_made_up/code.py: size"])}, {"first::a": (1.0, ["atom_made_up/other.py: f"])}
    for mistake in (of(mutations, "a < LIMIT"), of(mutations, "3")):
        found = choosing.candidates(mistake, {first: uses, kernels: {"kernels::a": (4.0, [])}}, may_guess=False)
        assert found == [(first, {"first::a": 1.0})]
        assert choosing.candidates(mistake, {first: other}, may_guess=False) == []


def test_calls_of_the_product_are_noted_since_the_last_beginning(mutations: list[Mutation]):
    spec = MutatedModule(of(mutations, "a < LIMIT")).find_spec("atom_made_up.code")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    calls, noted = Calls(), []
    calls.stop()  # who never began may end
    module.fits(1)
    calls.watch()
    try:
        for function in (lambda: module.fits(1), lambda: None, lambda: module.fits(2), module.size):
            calls.begin()
            function()
            noted.append({code.co_name for code in calls.begin()})
        thread = threading.Thread(target=module.fits, args=(1,))
        thread.start()
        thread.join()
        noted.append({code.co_name for code in calls.begin()})
    finally:
        calls.stop()
    module.fits(1)
    assert noted == [{"fits"}, set(), {"fits"}, {"size"}, {"fits"}]
    assert calls.begin() == set()


def test_kernels_are_interpreted_in_a_process_of_their_own_and_without_a_gpu(tmp_path: Path):
    """Other tests would see Triton where they expect none; on a machine with a GPU kernels would run there."""
    folder = tmp_path / "triton_kernels"
    folder.mkdir()
    (tmp_path / "test_a.py").write_text("import os\n\ndef test_a():\n    assert 'TRITON_INTERPRET' not in os.environ\n")
    hidden = "os.environ['TRITON_INTERPRET'] == '1' and os.environ['CUDA_VISIBLE_DEVICES'] == ''"
    (folder / "test_b.py").write_text(f"import os\n\ndef test_b():\n    assert {hidden}\n")
    run = (
        "import pathlib, sys; from tools.mutate import forked; from tools.mutate.settings import hide_gpus\n"
        "forked._OPTIONS = ('-q', '-p', 'no:cacheprovider'); hide_gpus(); plugin = object()\n"
        "sys.exit(forked._run_tests(sys.argv[1:], None, plugin, pathlib.Path('tests')))"
    )
    files = [tmp_path / "test_a.py", folder / "test_b.py", tmp_path / "test_a.py"]
    command = [sys.executable, "-c", run, *map(str, files)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = f"{ROOT}{os.pathsep}{environment.get('PYTHONPATH', '')}"
    assert subprocess.run(command, cwd=tmp_path, env=environment, timeout=60, check=False).returncode == 0


class Countdown:
    """What ends when it was looked at often enough."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.was_stopped = False

    def has_ended(self) -> bool:
        self.looks -= 1
        return self.looks <= 0

    def stop(self) -> None:
        self.was_stopped = True


def test_runs_go_side_by_side_as_many_as_there_are_jobs():
    started: list[Countdown] = []

    def start(looks: int) -> Countdown:
        started.append(Countdown(looks))
        return started[-1]

    looks = [5, 1, 1, 1]
    starts = ((number, partial(start, number)) for number in looks)
    ended = forked.side_by_side(starts, jobs=2)
    assert [(name, len(started)) for name, _ in ended] == [(1, 2), (1, 3), (1, 4), (5, 4)]
    started.clear()
    ended = forked.side_by_side(((number, partial(start, number)) for number in looks), jobs=3)
    next(ended)
    ended.close()
    assert [run.was_stopped for run in started] == [True, False, True]


def test_tests_that_fail_without_a_mistake_are_left_out_only_if_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("tools.mutate.measuring.ROOT", tmp_path)
    kept = tmp_path / "kept.json"
    good, bad = "test_code.py::test_good", "test_code.py::test_bad"
    kept.write_text(json.dumps({"tests": {good: [1.0, []], bad: [1.0, []]}, "failed": [bad]}))
    read = partial(measuring.read, tmp_path / "test_code.py")
    assert read(kept, skip_failing=True) == {good: [1.0, []]}
    assert read(tmp_path / "none.json", skip_failing=True) == {}
    assert re.findall("mistake: (.*)", capsys.readouterr().out) == [bad, "test_code.py"]
    with pytest.raises(RuntimeError, match="without any mistake these fail: test_code.py::test_bad: mend them first"):
        read(kept, skip_failing=False)
    assert not kept.exists()  # they are measured again once they are mended


def test_survivors_are_reported_and_fail_the_command(
    mutations: list[Mutation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("tools.mutate.report.FOLDER", tmp_path)
    trials = [Trial(mutation, "packages/test_code.py::test_it", 0.5) for mutation in mutations[:4]]
    found = Outcome("found", trials[:3], {"test_code.py"}, 1)
    lost = Outcome("lost", [replace(trials[0], found_by=None), *trials[1:]], {"test_other.py"}, 0)
    assert report([found]) == 0
    assert report([found, lost]) == 1
    assert "all              7     6  85.7 %        1        4" in capsys.readouterr().out
    assert str(mutations[0]) in (tmp_path / "lost.txt").read_text()
    assert survivors_of_last_run("lost") == {mutations[0].lot}
    assert survivors_of_last_run("found") == survivors_of_last_run("never run") == frozenset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "flags"),
    [
        ("adapters", ["--kind", "arguments", "layout", "skipped", "enum"]),
        ("sampler", ["--only", "sampling/extras", "--kind", "comparison", "arithmetic", "left out"]),
    ],
)
def test_the_tests_find_a_sample_of_the_mistakes(part: str, flags: list[str]):
    command = [sys.executable, "-m", "tools.mutate", "--part", part, *flags, "--sample", "12"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "100.0 %" in run.stdout


def test_what_was_measured_is_kept_while_bytecode_comes_and_goes(tmp_path, monkeypatch):
    sources = tmp_path / "packages/some/src"
    (sources / "__pycache__").mkdir(parents=True)
    (tmp_path / "conftest.py").touch()
    (sources / "code.py").write_text("one")
    monkeypatch.setattr(measuring, "ROOT", tmp_path)
    before = measuring._product.__wrapped__()
    (sources / "__pycache__/code.cpython-311.pyc").write_text("made by the first run")
    assert measuring._product.__wrapped__() == before
    (sources / "code.py").write_text("another")
    assert measuring._product.__wrapped__() != before
