"""The benchmark of shapes that nobody tuned: what it would measure, by which rules, and how it tells what it found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_kernels.linear.triton.tuning import LINEAR_TUNING, PACKED
from atom_kernels.linear.triton.tuning import candidates as linear_candidates
from atom_kernels.moe.tuning import MOE_EXPERTS_TUNING
from atom_kernels.moe.tuning import candidates as experts_candidates
from atom_kernels.platform import Platform, use_platform
from atom_kernels.tuned.store import FOLDER
from atom_kernels.tuned.tuner import RIVAL, Calls, Config, Subject
from benchmarks.__main__ import main
from benchmarks.kernels.untuned import command, untuned_table
from benchmarks.kernels.untuned.cases import UntunedCase, all_cases
from benchmarks.kernels.untuned.contest import contest
from benchmarks.kernels.untuned.shapes import DENSE, MIXTURES, ROWS
from benchmarks.kernels.untuned.table import describe, worst_cases

ALL = [*DENSE, *MIXTURES]
CANDIDATES: dict[str, Any] = {"linear": linear_candidates, "moe_experts": experts_candidates}
PARTS = {"linear": {"linear"}, "moe_experts": {"gate_up", "down"}}
H200 = replace(Platform.nvidia("sm_90"), name="NVIDIA H200", bytes_per_second=4.8e12)


@pytest.fixture(autouse=True)
def on_an_h200() -> Iterator[None]:
    with use_platform(H200):
        yield


def test_no_table_has_any_of_the_shapes_and_neither_has_the_tuner():
    keys = {case.untuned.key for case in all_cases(ALL, (1,))}
    for path in FOLDER.glob("*.json"):
        for operator, tuned in json.loads(path.read_text())["operators"].items():
            assert not keys.intersection((operator, key) for key in tuned)
    for tuning in (LINEAR_TUNING, MOE_EXPERTS_TUNING):
        assert not keys.intersection((tuning.operator, tuning.key(problem)) for problem in tuning.problems().values())


def test_shapes_are_many_and_of_many_sizes():
    assert len(DENSE) >= 12
    assert len(MIXTURES) >= 4
    assert {1536, 8192} <= {shape.hidden_size for shape in DENSE.values()}
    assert {32000, 256000} <= {shape.vocab_size for shape in DENSE.values()}


def test_a_layer_has_four_linears_and_a_head_beside_it_and_no_problem_comes_twice():
    cases = [case for case in all_cases(ALL, (1,)) if case.model == "Phi-4"]
    assert sorted(case.label for case in cases) == [
        f"{name}, rows 1" for name in ("down_proj", "gate_up_proj", "lm_head", "o_proj", "qkv_proj")
    ]
    counts = Counter((case.untuned.key, case.num_rows) for case in all_cases(ALL, ROWS))
    assert set(counts.values()) == {1}


def test_a_run_that_is_cut_has_the_same_cases_each_time_and_shapes_and_rows_of_all_kinds():
    first = all_cases(ALL, ROWS)[:75]
    assert [case.label for case in first] == [case.label for case in all_cases(ALL, ROWS)[:75]]
    assert {case.num_rows for case in first} == set(ROWS)
    assert {case.operator for case in first} == {"linear", "moe_experts"}
    assert len({case.model for case in first}) > 15


@pytest.mark.parametrize("held", command.FORMATS)
def test_the_rule_chooses_for_every_case_and_every_case_has_candidates(held: str):
    cases = all_cases(ALL, ROWS, held)
    assert len(cases) > 300
    for case in cases:
        problem = case.untuned.problem
        assert set(case.chosen()) == PARTS[case.operator]
        assert len(CANDIDATES[case.operator](problem, case.num_rows)) > 1


def test_formats_are_the_tuners():
    assert list(command.FORMATS) == ["bfloat16", *PACKED]


def test_packed_cases_say_their_format_and_leave_heads_out():
    cases = all_cases(["Phi-4", "Phi-3.5-MoE"], (16,), "int4")
    assert sorted(case.label for case in cases if case.operator == "linear") == [
        f"{name}, in int4 per 128, rows 16" for name in ("down_proj", "gate_up_proj", "o_proj", "qkv_proj")
    ]
    assert not any(case.untuned.problem.is_plain for case in cases)


def test_experts_are_left_out_where_another_operator_serves_whatever_is_tuned():
    limits = [case.untuned.most_rows for case in all_cases(["Mixtral-8x22B"], (1,))]
    assert limits == [192]
    assert [case.num_rows for case in all_cases(["Mixtral-8x22B"], (192, 193))] == [192]


class FakeSubject(Subject):
    """A block takes as many microseconds as it is large, and block 7 cannot run; the rival takes 5."""

    def __init__(self, problem: Any) -> None:
        self.problem = problem

    def candidates(self, num_rows: int) -> Mapping[str, Sequence[Config]]:
        return {"linear": [{"block": block} for block in (4, 6, 7, 8)]}

    def calls(self, part: str, config: Config, num_rows: int) -> Calls:
        def call() -> float:
            if config["block"] == 7:
                raise RuntimeError("out of resources\nand more words")
            return config["block"] * 1e-6

        return [call]

    def rival(self, part: str, num_rows: int) -> Calls:
        return [lambda: 5e-6]


def faked(chosen: Config, subject: type[Subject] = FakeSubject) -> UntunedCase:
    """A case of 16 rows whose rule chooses so."""
    case = next(case for case in all_cases(["Phi-4"], (16,)) if case.operator == "linear")
    tuning = replace(case.untuned.tuning, subject=subject)
    return replace(case, untuned=replace(case.untuned, tuning=tuning, choose=lambda problem, rows: {"linear": chosen}))


def by_the_call(calls: Calls) -> float:
    return calls[0]()


@pytest.mark.parametrize(
    ("chosen", "us", "best", "tried"),
    [
        ({"block": 6}, 6.0, {"block": 4}, 5),
        ({"block": 4}, 4.0, {"block": 4}, 5),
        ({"block": 3}, 3.0, {"block": 3}, 6),
        (RIVAL, 5.0, {"block": 4}, 5),
    ],
    ids=["a candidate", "the best", "better than all candidates", "the library"],
)
def test_the_choice_is_compared_with_the_best_of_all_that_run(chosen: Config, us: float, best: Config, tried: int):
    (result,) = contest(faked(chosen), by_the_call)
    assert (result["us"], result["best"], result["tried"]) == (us, best, tried)
    assert result["slower"] == pytest.approx(us / result["best_us"] - 1)
    assert result["chosen"] == chosen
    assert json.loads(json.dumps(result)) == result


class TwoParts(FakeSubject):
    """The second part has the only block that takes 2."""

    def candidates(self, num_rows: int) -> Mapping[str, Sequence[Config]]:
        return {"gate_up": [{"block": 4}, {"block": 6}], "down": [{"block": 2}, {"block": 8}]}


def test_parts_are_compared_each_with_its_own_candidates():
    case = faked({}, TwoParts)
    chosen = {"gate_up": {"block": 6}, "down": {"block": 8}}
    results = contest(replace(case, untuned=replace(case.untuned, choose=lambda *_: chosen)), by_the_call)
    assert [(one["part"], one["us"], one["best_us"]) for one in results] == [("gate_up", 6, 4), ("down", 8, 2)]


def test_a_choice_that_does_not_run_is_a_failure():
    with pytest.raises(RuntimeError, match="what the rule chooses does not run: RuntimeError: out of resources"):
        contest(faked({"block": 7}), by_the_call)


def test_luck_in_the_first_pass_does_not_make_the_best():
    timed: Counter[float] = Counter()

    def lucky_once(calls: Calls) -> float:
        seconds = calls[0]()
        timed[seconds] += 1
        return 1e-6 if seconds == 8e-6 and timed[seconds] == 1 else seconds

    (result,) = contest(faked({"block": 6}), lucky_once)
    assert result["best"] == {"block": 4}


def make_document() -> dict[str, Any]:
    document = command.make_document("NVIDIA H200", "abc1234")
    first = {"operator": "linear", "model": "Phi-4", "part": "linear", "us": 10.0, "best_us": 10.0, "tried": 20}
    first |= {"chosen": {"block": 6}, "best": {"block": 6}}
    slow = {"us": 12.0, "slower": 0.2, "best": {"block": 4}}
    document["results"] = [
        first | {"case": "o_proj, rows 1", "rows": 1, "slower": 0.0},
        first | {"case": "o_proj, rows 16", "rows": 16, "slower": 0.05},
        first | {"case": "qkv_proj, rows 16", "rows": 16} | slow,
        {"operator": "linear", "model": "Phi-4", "case": "lm_head, rows 1", "failure": "RuntimeError: no"},
    ]
    return document


def test_the_table_says_the_median_the_shares_above_the_limits_and_the_worst_by_rows():
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in untuned_table(make_document()).splitlines()]
    assert cells[0][:6] == ["operator", "rows", "cases", "median", "above 3%", "above 7%"]
    assert cells[2] == ["linear", "all", "3", "5.0%", "67%", "33%", "20.0%", "Phi-4 qkv_proj, rows 16, linear"]
    assert cells[3][:6] == ["linear", "1", "1", "0.0%", "0%", "0%"]
    assert cells[4][:6] == ["linear", "16", "2", "12.5%", "100%", "50%"]
    assert "NVIDIA H200: " in untuned_table(make_document())
    assert untuned_table(make_document()).endswith("1 case failed.")


def test_a_line_about_a_case_has_both_configurations_where_they_are_far_apart():
    near, far, failed = (describe(result) for result in make_document()["results"][1:])
    assert near.endswith(" 5.0% slower")
    assert far.endswith("20.0% slower: block=6; best: block=4")
    assert failed.endswith("FAILED RuntimeError: no")
    assert worst_cases(make_document())[0] == far


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The cases that are measured, by a stand-in that fails at 3 rows, on a machine that seems to have a GPU."""
    cases: list[tuple[str, str]] = []

    def stand_in(case: UntunedCase) -> list[dict[str, Any]]:
        cases.append((case.model, case.label))
        if case.num_rows == 3 and cases.count(cases[-1]) == 1:
            raise RuntimeError("no kernel\nand more words")
        parts = [faked(config) for config in ({"block": 6}, RIVAL)][: len(case.chosen())]
        names = {"model": case.model, "case": case.label, "operator": case.operator, "rows": case.num_rows}
        return [result | names for one in parts for result in contest(one, by_the_call)]

    monkeypatch.setattr("benchmarks.kernels.untuned.contest.contest", stand_in)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    return cases


def run(path: Path, *flags: str) -> int:
    shapes = ("--shape", "Phi-4", "--shape", "Phi-3.5-MoE", "--rows", "3", "16")
    return main(["kernels", "untuned", *flags, "--output", str(path), *shapes])


def test_the_command_measures_all_keeps_failures_and_prints_the_table(
    measured: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(tmp_path / "out.json") == 1
    assert len(measured) == len(set(measured)) == 12
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["benchmark"] == "untuned"
    failed = [result for result in document["results"] if "failure" in result]
    assert [result["failure"] for result in failed] == ["RuntimeError: no kernel"] * 6
    # Five linears and both products of the experts.
    assert len(document["results"]) - len(failed) == 7
    printed = capsys.readouterr().out
    assert "FAILED RuntimeError: no kernel" in printed
    assert untuned_table(document) in printed


def test_a_run_goes_on_where_another_was_cut_and_measures_again_what_failed(
    measured: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "out.json"
    assert run(path, "--seconds", "-1") == 0
    assert measured == []
    assert "stopped after -1 s, before " in capsys.readouterr().out
    assert run(path) == 1
    measured[:] = [case for case in measured if case[1].endswith("rows 3")]
    again = len(measured)
    assert run(path, "--append") == 0
    assert sorted(measured[again:]) == sorted(measured[:again])
    results = json.loads(path.read_text())["results"]
    assert len(results) == 14
    assert not any("failure" in result for result in results)


@pytest.mark.parametrize(("operator", "count"), [("linear", 10), ("moe_experts", 2)])
def test_one_operator_alone_is_measured(operator: str, count: int, measured: list[tuple[str, str]], tmp_path: Path):
    run(tmp_path / "out.json", operator)
    assert len(measured) == count


def test_other_operators_and_machines_without_a_gpu_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="untuned measures linear and moe_experts, not attention"):
        run(tmp_path / "out.json", "attention")
    with pytest.raises(SystemExit, match="needs a GPU"):
        run(tmp_path / "out.json")
