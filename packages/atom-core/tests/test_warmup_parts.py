"""A warm-up's list of steps, the order in which it does things, and how it shares time with steps."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from atom_core.config.sections import ParallelConfig
from atom_core.engine.between_steps import LEAST_SECONDS, PARTS, BetweenSteps
from atom_core.messages import SchedulerOutput
from atom_core.worker.model.compilation import CompilationWatch
from atom_core.worker.warmup import warmup as warmup_module
from atom_core.worker.warmup.factory import has_variants
from atom_core.worker.warmup.steps_of_nobody import StepsOfNobody
from atom_core.worker.warmup.variants import GREEDY, SAMPLERS, Rows, StepLimits, Variant, step_variants
from atom_core.worker.warmup.warmup import Warmup
from atom_kernels.protocols import Pages

ONE, TWO = Variant("one", (Rows(1, 16, 1),)), Variant("two", (Rows(2, 0, 3),), is_masked=True)


class Model:
    """Remembers what it is told."""

    def __init__(self, *, num_free_slots: int = 8, fails: bool = False) -> None:
        self.num_free_slots, self._fails = num_free_slots, fails
        self.told: list[str] = []
        self.steps: list[SchedulerOutput] = []
        self.masked: list[bool] = []

    def forward(self, step: SchedulerOutput) -> None:
        self.told.append(f"forward {len(step.scheduled)}")
        self.steps.append(step)
        if self._fails:
            raise RuntimeError("no memory")

    def sample(self, masks: Any) -> Any:
        self.masked.append(masks is not None)
        return lambda: self.told.append("wait")

    def abandon(self, step: SchedulerOutput) -> None:
        assert step.dropped_request_ids == [request.request_id for request in self.steps[-1].new_requests]
        self.told.append("forget")


def make_warmup(model: Model, *, at_once: bool = True, compiles_ahead: bool = True) -> Warmup:
    steps = StepsOfNobody(model, (Pages(),), spare_block=9, block_size=16, vocab_size=40)
    graphs = iter([True, False])

    def capture_next() -> bool:
        model.told.append("capture")
        return next(graphs)

    flags = {"compiles_ahead": compiles_ahead, "at_once": at_once}
    return Warmup([ONE, TWO], steps, capture_next, CompilationWatch(), **flags)


def do_all(warmup: Warmup) -> None:
    while warmup.do_next():
        pass


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compiled ahead is called, as on a GPU."""
    monkeypatch.setattr(warmup_module, "compile_ahead", lambda work: work())


def test_kernels_are_compiled_before_graphs_are_captured_and_then_all_runs_once() -> None:
    model = Model()
    do_all(make_warmup(model))
    launched = ["forward 1", "forget", "wait", "forward 2", "forget", "wait"]
    compiled = [what for what in launched if what != "wait"]
    assert model.told == [*compiled, "capture", "capture", *launched]
    assert model.masked == [False, True] * 2


@pytest.mark.parametrize("flags", [{"at_once": False}, {"compiles_ahead": False}], ids=str)
def test_beside_requests_nothing_is_compiled_without_a_launch(flags: dict[str, bool]) -> None:
    model = Model()
    do_all(make_warmup(model, **flags))
    assert model.told[:3] == ["capture", "capture", "forward 1"]
    assert model.told.count("forward 1") == 1


def test_steps_of_nobody_write_to_the_spare_block_alone() -> None:
    model = Model()
    do_all(make_warmup(model))
    tables = {tuple(request.new_block_ids[0]) for step in model.steps for request in step.scheduled}
    assert tables == {(9, 9), (9,)}


def test_a_step_that_fails_is_passed_over_and_its_requests_are_forgotten() -> None:
    model = Model(fails=True)
    do_all(make_warmup(model, at_once=False))
    assert model.told == ["capture", "capture", "forward 1", "forget", "forward 2", "forget"]


def test_a_step_for_which_there_is_no_room_beside_requests_is_given_up() -> None:
    model = Model(num_free_slots=1)
    do_all(make_warmup(model, at_once=False))
    assert model.told[2:] == ["forward 1", "forget", "wait"]


@pytest.mark.parametrize(
    "limits",
    [
        StepLimits(max_num_seqs=512, max_num_tokens=16384, max_model_len=40960, block_size=16),
        StepLimits(max_num_seqs=1, max_num_tokens=1, max_model_len=2, block_size=16),
        StepLimits(
            max_num_seqs=8, max_num_tokens=64, max_model_len=100, block_size=16, num_drafts=3, max_num_samples=20
        ),
    ],
    ids=lambda limits: f"{limits.max_num_seqs} requests",
)
def test_every_step_of_the_list_is_one_that_service_can_meet(limits: StepLimits) -> None:
    variants = step_variants(limits, [7])
    for variant in variants:
        assert 1 <= variant.num_reqs <= limits.max_num_seqs
        assert variant.num_tokens <= limits.max_num_tokens
        assert variant.longest <= limits.max_model_len
        assert all(rows.num_cached >= 0 and rows.num_new > rows.num_drafts for rows in variant.rows)
    assert len({variant.name for variant in variants}) == len(variants)
    if limits.max_num_seqs == 512:
        assert variants[0].num_tokens == 16384


def test_the_list_has_every_way_to_sample_and_every_number_of_drafts() -> None:
    limits = StepLimits(max_num_seqs=64, max_num_tokens=256, max_model_len=512, block_size=16, num_drafts=2)
    variants = step_variants(limits)
    assert {id(variant.params) for variant in variants} >= {id(params) for params in SAMPLERS.values()}
    assert any(variant.is_masked for variant in variants)
    assert any(variant.params.prompt_logprobs is not None for variant in variants)
    assert {rows.num_drafts for variant in variants for rows in variant.rows} == {0, 1, 2}
    assert any(len(variant.rows) == 2 and variant.params == GREEDY for variant in variants)


@pytest.fixture
def listener() -> Iterator[Any]:
    knobs = pytest.importorskip("triton").knobs
    before = knobs.compilation.listener
    yield knobs.compilation
    knobs.compilation.listener = before


def test_a_kernel_that_this_thread_meets_outside_of_a_warm_up_is_late(listener: Any) -> None:
    others: list[Any] = []
    listener.listener = lambda **compiled: others.append(compiled)
    watch = CompilationWatch()
    watch.watch_triton()
    with watch.early():
        listener.listener(src=1)
    assert watch.num_late == 0
    thread = threading.Thread(target=lambda: listener.listener(src=2))
    thread.start()
    thread.join()
    assert watch.num_late == 0
    listener.listener(src=3)
    assert watch.num_late == 1
    # Whoever listened before goes on.
    assert others == [{"src": 1}, {"src": 2}, {"src": 3}]


def test_between_two_slices_steps_run_for_longer_than_a_slice_took(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slices = [0.0], []

    def do_next() -> bool:
        slices.append(now[0])
        now[0] += 0.05
        return len(slices) < 3

    monkeypatch.setattr("atom_core.engine.between_steps.time.monotonic", lambda: now[0])
    between = BetweenSteps(do_next)
    while between.use():
        now[0] += 0.005
    pauses = [after - before - 0.05 for before, after in itertools.pairwise(slices)]
    assert all(pause >= max(LEAST_SECONDS, (PARTS - 1) * 0.05) - 1e-9 for pause in pauses)
    assert len(slices) == 3


@pytest.mark.parametrize(
    ("warmup", "launches", "ranks", "expected"),
    [
        ("full", True, {}, True),
        ("background", True, {}, True),
        ("none", True, {}, False),
        ("full", False, {}, False),
        ("full", True, {"tensor_parallel_size": 2}, False),
        ("full", True, {"pipeline_parallel_size": 2}, False),
        ("full", True, {"data_parallel_size": 2}, True),
    ],
)
def test_steps_of_nobody_are_run_on_one_device_that_launches_kernels(warmup, launches, ranks, expected) -> None:
    config = SimpleNamespace(compile=SimpleNamespace(warmup=warmup), parallel=ParallelConfig(1, **ranks))
    assert has_variants(config, launches_kernels=launches) == expected
