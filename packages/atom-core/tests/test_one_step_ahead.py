"""The engine hands the device its next step before it has read the last one's tokens."""

from __future__ import annotations

import gc
import itertools
import threading
import time
from pathlib import Path

import pytest

from atom_core.config import CacheConfig, CompileConfig, EngineConfig, ModelConfig, ParallelConfig, ProfilerConfig
from atom_core.engine.engine_core import EngineCore
from atom_core.errors import EngineDeadError
from atom_core.executor import InlineExecutor
from atom_core.messages import EngineRequest, ModelOutput, RequestStepOutput, SamplingParams
from atom_core.scheduler import SchedulerConfig
from atom_core.worker.runner import PendingOutput, RunnerInfo
from atom_kernels.protocols import CacheFormat


def make_config(**scheduler) -> EngineConfig:
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 128, **scheduler}
    return EngineConfig(
        model=ModelConfig("fake", Path("fake"), "FakeForCausalLM", "float32", 128, True, 100, ()),
        cache=CacheConfig(16, CacheFormat("float32"), True, "xxhash64", 0.9, num_blocks=64),
        scheduler=SchedulerConfig(**limits),
        parallel=ParallelConfig(1),
        compile=CompileConfig(),
        profiler=ProfilerConfig(),
        device="cpu",
    )


def make_request(request_id: str = "a", *, max_tokens: int = 5) -> EngineRequest:
    return EngineRequest(request_id, [1, 2, 3], SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0))


class FakeDevice:
    """A runner whose steps take time; it counts up, and keeps a trace of what happened when.

    `fails_at` names steps that raise; `launches` is what it says of itself, and `gate` lets it go on.
    """

    def __init__(self, *, delay: float = 0.01, fails_at: tuple[int, ...] = (), launches: bool = False) -> None:
        self.trace: list[tuple[str, int]] = []
        self.launched: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self._launches = launches
        self.threads: set[int] = set()
        self._delay = delay
        self._fails_at = fails_at
        self._count = 0

    def load(self) -> RunnerInfo:
        return RunnerInfo(num_blocks=64, max_model_len=128, launches=self._launches)

    def forward(self, step) -> None:
        self.threads.add(threading.get_ident())
        self._step = step
        self._count += 1
        time.sleep(self._delay)
        self.gate.wait()
        if self._count in self._fails_at:
            raise RuntimeError("the device is on fire")
        self.launched.append(step.step_id)

    def sample(self, masks) -> PendingOutput:
        tokens = [[self._count] if request.num_samples else [] for request in self._step.scheduled]
        self.trace.append(("sampled", self._step.step_id))
        reports = [
            RequestStepOutput(request.request_id, token_ids)
            for request, token_ids in zip(self._step.scheduled, tokens, strict=True)
        ]
        output = ModelOutput(self._step.step_id, reports)
        return lambda: output

    is_preparing = False

    def prepare(self) -> bool:
        return False

    def profile(self, *, start: bool) -> None: ...
    def close(self) -> None: ...


class TracingExecutor(InlineExecutor):
    """Notes when steps are submitted and when their tokens are read."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device)
        self.trace = device.trace

    def submit(self, step):
        self.trace.append(("submitted", step.step_id))
        handle = super().submit(step)
        read = handle.result

        def result():
            output = read()
            self.trace.append(("read", step.step_id))
            return output

        handle.result = result
        return handle


def run(core: EngineCore, *requests: EngineRequest) -> dict[str, list]:
    """Run until nothing is left; the news of each request."""
    for request in requests:
        core.add_request(request)
    news: dict[str, list] = {}
    while core.has_unfinished():
        for output in core.step():
            news.setdefault(output.request_id, []).append(output)
    core.close()
    return news


def test_the_next_step_is_submitted_before_the_last_ones_tokens_are_read():
    device = FakeDevice()
    executor = TracingExecutor(device)
    run(EngineCore(make_config(), executor), make_request())
    submitted = [step_id for event, step_id in device.trace if event == "submitted"]
    for earlier, later in itertools.pairwise(submitted):
        assert device.trace.index(("submitted", later)) < device.trace.index(("read", earlier))
        assert device.trace.index(("submitted", later)) < device.trace.index(("sampled", earlier))


@pytest.mark.parametrize(("num_stages", "is_async", "most"), [(1, True, 2), (2, True, 2), (4, True, 4), (4, False, 1)])
def test_every_stage_has_a_step_before_the_first_ones_tokens_are_read(num_stages: int, is_async: bool, most: int):
    device = FakeDevice(delay=0)
    config = make_config(num_stages=num_stages, async_scheduling=is_async)
    run(EngineCore(config, TracingExecutor(device)), *map(make_request, "abcdefg"))
    in_flight = [0]
    for event, _ in device.trace:
        in_flight.append(in_flight[-1] + {"submitted": 1, "read": -1, "sampled": 0}[event])
    assert max(in_flight) == most


def test_a_device_that_has_nothing_to_do_gets_its_step_before_anything_else_is_done():
    device = FakeDevice(launches=True)
    core = EngineCore(make_config(), InlineExecutor(device))
    core.add_request(make_request())
    core.step()
    assert device.launched == [0]
    # Nobody waits for the launch of a step while another is in flight.
    device.gate.clear()
    core.step()
    assert device.launched == [0]
    device.gate.set()
    run(core)


def test_what_fails_while_it_is_launched_is_reported_with_its_step():
    device = FakeDevice(launches=True, fails_at=(1,))
    [ending] = run(EngineCore(make_config(), InlineExecutor(device)), make_request())["a"]
    assert ending.finish_reason == "error"
    assert "the device is on fire" in ending.error


def test_a_worker_that_computes_by_itself_is_not_waited_for():
    device = FakeDevice()
    core = EngineCore(make_config(), InlineExecutor(device))
    core.add_request(make_request())
    device.gate.clear()
    core.step()
    assert device.launched == []
    device.gate.set()
    run(core)


def test_without_async_scheduling_each_step_is_read_before_the_next_is_submitted():
    device = FakeDevice()
    run(EngineCore(make_config(async_scheduling=False), TracingExecutor(device)), make_request())
    kinds = [event for event, _ in device.trace]
    assert kinds == ["submitted", "sampled", "read"] * (len(kinds) // 3)


def test_no_step_is_computed_past_a_requests_last_token():
    device = FakeDevice(delay=0.0)
    news = run(EngineCore(make_config(), InlineExecutor(device)), make_request(max_tokens=5))
    assert [token for output in news["a"] for token in output.new_token_ids] == [1, 2, 3, 4, 5]
    assert len(device.trace) == 5


def test_everything_of_the_runner_happens_in_one_thread_that_is_not_the_callers():
    device = FakeDevice(delay=0.0)
    run(EngineCore(make_config(), InlineExecutor(device)), make_request(), make_request("b"))
    assert len(device.threads) == 1
    assert threading.get_ident() not in device.threads


def test_a_failed_step_ends_its_requests_with_an_error_and_the_engine_goes_on():
    core = EngineCore(make_config(), InlineExecutor(FakeDevice(fails_at=(3,))))
    first = run_until_finished(core, make_request("a", max_tokens=20), make_request("b", max_tokens=20))
    assert {request_id: output.finish_reason for request_id, output in first.items()} == {"a": "error", "b": "error"}
    assert "the device is on fire" in first["a"].error
    assert core.stats().num_free_blocks == core.stats().num_blocks
    assert run_until_finished(core, make_request("c"))["c"].finish_reason == "length"
    core.close()


def test_a_device_that_fails_again_and_again_is_the_end_of_the_engine():
    core = EngineCore(make_config(), InlineExecutor(FakeDevice(fails_at=tuple(range(1, 100)), delay=0.0)))
    for name in "ab":
        assert run_until_finished(core, make_request(name))[name].finish_reason == "error"
    with pytest.raises(EngineDeadError, match="3 steps failed in a row"):
        run_until_finished(core, make_request("c"))
    core.close()


def test_a_request_that_could_never_fit_ends_with_an_error_and_not_with_an_exception():
    core = EngineCore(make_config(), InlineExecutor(FakeDevice(delay=0.0)))
    too_long = EngineRequest("long", list(range(4000)), SamplingParams(max_tokens=5, seed=0))
    news = run_until_finished(core, too_long, make_request("b"))
    assert news["long"].finish_reason == "error"
    assert news["long"].error
    assert news["b"].finish_reason == "length"
    core.close()


def run_until_finished(core: EngineCore, *requests: EngineRequest) -> dict:
    """The last news of each request; the engine stays open."""
    for request in requests:
        core.add_request(request)
    last = {}
    while core.has_unfinished():
        last.update({output.request_id: output for output in core.step() if output.finish_reason})
    return last


def test_an_engine_in_somebodys_program_leaves_the_collection_of_garbage_as_it_is():
    before = gc.get_freeze_count(), gc.isenabled(), gc.get_threshold()
    core = EngineCore(make_config(), InlineExecutor(FakeDevice(delay=0.0)))
    assert run_until_finished(core, make_request("a"))["a"].finish_reason
    assert (gc.get_freeze_count(), gc.isenabled(), gc.get_threshold()) == before
    core.close()
