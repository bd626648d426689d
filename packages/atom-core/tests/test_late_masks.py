"""Masks that would hold up a step are made beside it: their requests wait, the others go on, and no token changes."""

from __future__ import annotations

import threading

import pytest

from atom_core import LLMEngine, SamplingParams
from atom_core.structured_output.llguidance.backend import LLGuidanceParser
from atom_core.structured_output.mask_thread import MaskThread
from atom_core.structured_output.matcher import Matcher
from atom_core.structured_output.work_budget import SECONDS_AT_ONCE, SECONDS_PER_TOKEN, WorkBudget
from grammars import PROMPT, SCHEMA_FOR, make_params, run

PROMPTS = [PROMPT * 8 + [index] for index in range(3)]
EVERY_MASK_IS_SLOW = {"atom_core.structured_output.matcher.SLOW_SECONDS": -1.0}
NO_TIME_IN_A_STEP = {"atom_core.structured_output.work_budget.STEP_SECONDS": -1.0}
NO_CACHED_PREFIX = {"enable_prefix_caching": False, "num_kv_blocks": 32, "max_model_len": 200}


class Free:
    """A `Parser` that allows every token; its masks take `seconds` of work, and wait for `gate`."""

    is_accepting, error = False, None

    def __init__(self, seconds: float = 0.0, gate: threading.Event | None = None) -> None:
        self._seconds, self._gate, self.now = seconds, gate, 0.0

    def fill(self, words) -> None:
        if self._gate is not None:
            assert self._gate.wait(60)
        self.now += self._seconds
        words.fill(-1)

    def accept(self, token_id: int) -> None:
        pass


@pytest.fixture(scope="module")
def expected(engine: LLMEngine) -> list[list[int]]:
    outputs = run(engine, make_params(0.0, json=SCHEMA_FOR["llguidance"], max_tokens=150), PROMPTS)
    return [output["token_ids"] for output in outputs]


@pytest.mark.parametrize("ahead", [True, False], ids=["ahead", "step by step"])
@pytest.mark.parametrize("settings", [{}, NO_CACHED_PREFIX], ids=["cached", "no cached prefix"])
@pytest.mark.parametrize("constants", [EVERY_MASK_IS_SLOW, NO_TIME_IN_A_STEP], ids=["slow", "no time"])
def test_requests_whose_masks_all_come_late_write_the_same(
    make_engine, expected, monkeypatch, constants, settings, ahead
):
    for name, value in constants.items():
        monkeypatch.setattr(name, value)
    engine = make_engine(async_scheduling=ahead, **settings)
    params = make_params(0.0, json=SCHEMA_FOR["llguidance"], max_tokens=150)
    assert [output["token_ids"] for output in run(engine, params, PROMPTS)] == expected
    assert engine.stats.num_free_blocks == engine.stats.num_blocks
    assert (engine.stats.num_running, engine.stats.num_waiting) == (0, 0)


def test_logprobs_of_a_request_whose_masks_come_late_are_the_same(make_engine, monkeypatch):
    params = make_params(1.0, json=SCHEMA_FOR["llguidance"], max_tokens=40, logprobs=2, prompt_logprobs=1)
    (before,) = run(make_engine(), params)
    for name, value in EVERY_MASK_IS_SLOW.items():
        monkeypatch.setattr(name, value)
    (late,) = run(make_engine(), params)
    assert late["token_ids"] == before["token_ids"]
    for kind in ("logprobs", "prompt_logprobs"):
        found, wanted = ([entry and entry.logprob for entry in output[kind]] for output in (late, before))
        assert found == pytest.approx(wanted, abs=1e-4)


@pytest.fixture
def gate(monkeypatch):
    """Masks after the first wait for this event, wherever they are made."""
    gate, fill, begun = threading.Event(), LLGuidanceParser.fill, []

    def fill_behind_the_gate(parser, words):
        if parser._size.num_tokens and not begun:
            begun.append(parser)
        if begun:
            assert gate.wait(60)
        fill(parser, words)

    monkeypatch.setattr(LLGuidanceParser, "fill", fill_behind_the_gate)
    for name, value in EVERY_MASK_IS_SLOW.items():
        monkeypatch.setattr(name, value)
    yield gate
    gate.set()


def add(engine, params, prompt):
    """Give a request to the engine's core; the ids of its samples."""
    samples = list(engine._inputs.process([prompt], params).samples())
    for sample in samples:
        engine._core.add_request(sample)
    return [sample.request_id for sample in samples]


def finished(engine, until=lambda: False):
    """Finish reasons by request, in the order in which requests end, until nothing is left to do."""
    reasons = {}
    while engine._core.has_unfinished() and not until():
        reasons.update({news.request_id: news.finish_reason for news in engine._core.step() if news.finish_reason})
        if until():
            break
    return reasons


def test_while_a_mask_is_made_others_decode_to_their_end(make_engine, gate):
    """Were the mask made in the step, no step would ever end."""
    engine = make_engine(structured_output_backend="llguidance")
    slow = add(engine, make_params(regex="[a-z]{30}", n=4), PROMPT)
    (other,) = add(engine, SamplingParams(max_tokens=100, ignore_eos=True), [6])
    core = engine._core
    news = []
    while not any(output.finish_reason for output in news):
        news += core.step()
    assert [output.request_id for output in news if output.finish_reason] == [other]
    assert core.stats().num_waiting + core.stats().num_running == 4
    gate.set()
    assert finished(engine) == dict.fromkeys(slow, "stop")


def test_a_request_that_waits_for_its_mask_can_be_aborted(make_engine, gate):
    engine = make_engine(structured_output_backend="llguidance")
    (slow,) = add(engine, make_params(regex="[a-z]{30}"), PROMPT)
    core = engine._core
    while not core._constrained._late:
        core.step()
    core.abort([slow])
    assert finished(engine) == {slow: "abort"}
    assert not core._constrained._late
    assert not core._constrained._followed
    assert core.stats().num_free_blocks == core.stats().num_blocks


def test_the_late_mask_of_a_request_that_is_gone_is_not_begun(make_engine, gate):
    engine = make_engine(structured_output_backend="llguidance")
    # Two samples of one grammar: were it two, the first mask of the later one could wait behind the gate for ever.
    ids = add(engine, make_params(regex="[a-z]{30}", n=2), PROMPT)
    core = engine._core
    while len(core._constrained._late) < 2:
        core.step()
    # One is being made, and the other one waits behind it.
    jobs = [core._constrained._late[request_id] for request_id in ids]
    core.abort(ids)
    finished(engine)
    assert not any(job.is_wanted for job in jobs)


def test_the_first_mask_of_a_request_that_is_gone_is_not_begun(make_engine, gate):
    engine = make_engine(structured_output_backend="llguidance")
    add(engine, make_params(regex="[a-z]{30}"), PROMPT)
    core = engine._core
    while not core._constrained._late:
        core.step()
    (waiting,) = add(engine, make_params(regex="[a-y]{30}"), PROMPT)
    entry = core._constrained._waiting._waiting[waiting]
    while entry.followed is None:
        core.step()
    core.abort([waiting])
    assert entry.followed.job.is_wanted is False


def test_a_panic_in_a_late_mask_ends_its_own_request_only(make_engine, monkeypatch):
    fill = LLGuidanceParser.fill

    def panic(parser, words):
        if parser._size.num_tokens > 3:
            raise BaseException("panicked")
        fill(parser, words)

    monkeypatch.setattr(LLGuidanceParser, "fill", panic)
    for name, value in EVERY_MASK_IS_SLOW.items():
        monkeypatch.setattr(name, value)
    engine = make_engine(structured_output_backend="llguidance")
    params = [make_params(regex="[a-z]{30}"), SamplingParams(max_tokens=30, ignore_eos=True)]
    bad, good = run(engine, params, [PROMPT, [6]])
    assert bad["finish_reason"] == "error"
    assert "cannot be followed any further" in bad["error"]
    assert good["num_tokens_output"] == 30


def test_the_thread_takes_the_mask_of_the_request_that_worked_least():
    gate, thread, order = threading.Event(), MaskThread(), []

    def matcher(name, used):
        budget = WorkBudget(lambda: 0.0)
        budget.spend(used)
        made = Matcher(Free(), 64, [2], budget=budget)
        make = made.mask
        made.mask = lambda: (order.append(name), make())[1]
        return made

    first = thread.begin(Matcher(Free(gate=gate), 64, [2]))
    jobs = [thread.begin(matcher(name, used)) for name, used in (("much", 0.4), ("little", 0.1), ("unwanted", 0.0))]
    jobs[2].is_wanted = False
    gate.set()
    last = thread.begin(matcher("last", 0.45))
    deadline = threading.Event()
    while not last.is_done:
        deadline.wait(0.001)
    thread.close()
    assert first.is_done
    assert order == ["little", "much", "last"]


def test_samples_of_one_request_share_a_budget_of_work():
    now = [0.0]
    budget = WorkBudget(lambda: now[0])
    for _ in range(10):
        budget.add_sample()
    assert not budget.is_used_up
    budget.spend(SECONDS_AT_ONCE + 10 * SECONDS_PER_TOKEN)
    assert not budget.is_used_up
    budget.spend(0.001)
    assert budget.is_used_up
    for _ in range(1000):
        budget.refill()
    budget.spend(SECONDS_AT_ONCE + 10 * SECONDS_PER_TOKEN + 0.001)
    assert budget.is_used_up, "it holds more than at its beginning"


def test_forced_tokens_are_not_followed_behind_a_slow_mask_or_past_the_steps_time():
    class Forced(Free):
        def fill(self, words) -> None:
            self.now += self._seconds
            words[0] = 1 << 5

    def make(seconds):
        parser = Forced(seconds)
        return Matcher(parser, 64, [2], budget=WorkBudget(lambda: parser.now))

    assert make(0.0).take_forced() == [5] * 128
    assert make(0.006).take_forced() == [5]
    left = iter([True] * 9 + [False] * 200)
    assert make(0.0).take_forced(lambda: next(left)) == [5] * 9


LIMITS = "atom_core.structured_output.constrained_requests."


def test_new_texts_wait_while_those_that_follow_grammars_hold_much_memory(make_engine, monkeypatch):
    monkeypatch.setattr(LIMITS + "BYTES_FOR_NEW", 1)
    engine = make_engine(structured_output_backend="llguidance")
    ids = [add(engine, make_params(regex=pattern), PROMPT)[0] for pattern in ("[a-f]{30}", "[a-e]{30}")]
    core, most, reasons = engine._core, 0, {}
    while core.has_unfinished():
        reasons.update({news.request_id: news.finish_reason for news in core.step() if news.finish_reason})
        most = max(most, len(core._constrained._followed))
    assert (reasons, most) == (dict.fromkeys(ids, "stop"), 1)


def test_of_texts_that_hold_too_much_memory_the_largest_ends(make_engine, monkeypatch):
    monkeypatch.setattr(LIMITS + "STEPS_BETWEEN_LOOKS", 1)
    monkeypatch.setattr(LIMITS + "MAX_BYTES", 500_000)
    engine = make_engine(structured_output_backend="llguidance")
    params = [make_params(regex=pattern) for pattern in ("[a-f]{400}", "[a-e]{20}")]
    *outputs, free = run(engine, [*params, SamplingParams(max_tokens=30, ignore_eos=True)], [PROMPT] * 3)
    assert [output["finish_reason"] for output in outputs] == ["error", "stop"]
    assert "hold too much memory" in outputs[0]["error"]
    assert free["num_tokens_output"] == 30
