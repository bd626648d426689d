"""What `LLMEngine` keeps of a call that did not get to its end: nothing."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FrameType
from typing import Any

import pytest

from atom_core import InvalidRequestError, LLMEngine, SamplingParams
from atom_core.engine.interrupts import interrupts_held

TRACED = ("atom_core.engine", "atom_core.executor", "atom_core.scheduler", "atom_core.kv_cache")
SIX = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
TWICE = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, n=2)
PROMPTS = [[4, 5] * 20, [6, 7]]


def tokens_of(engine: LLMEngine) -> list[list[int]]:
    return [output["token_ids"] for output in engine.generate(PROMPTS, SIX, use_tqdm=False)]


def is_clean(engine: LLMEngine) -> bool:
    """Whether nothing is open, nothing is to come, and all blocks are free."""
    stats = engine.stats
    return (
        engine.is_finished()
        and (stats.num_running, stats.num_waiting) == (0, 0)
        and stats.num_free_blocks == stats.num_blocks
        and engine.step() == []
    )


def interrupt_at(line: int, call: Callable[[], Any], *, function: str = "", times: int = 1) -> bool:
    """Press Ctrl-C before the given line that `call` runs of the engine (or of this function); whether it got there."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if not frame.f_globals.get("__name__", "").startswith(TRACED) or function not in frame.f_code.co_qualname:
            return None
        if event == "line":
            count += 1
            if count == line:
                sys.settrace(None)
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def press_while_held(lines: list[str]) -> None:
    with interrupts_held():
        signal.raise_signal(signal.SIGINT)
        lines.append("still here")


@pytest.mark.parametrize("method", ["generate", "embed", "add_request"])
def test_ctrl_c_anywhere_in_a_call_leaves_nothing_behind(engine, method):
    calls = {
        "generate": lambda: engine.generate(PROMPTS, TWICE, use_tqdm=False),
        "embed": lambda: engine.embed(PROMPTS),
        "add_request": lambda: request_ids.extend(engine.add_request(PROMPTS, TWICE)),
    }
    request_ids: list[str] = []
    expected = tokens_of(engine)
    line, dirty = 1, []
    while interrupt_at(line, calls[method]):
        if not is_clean(engine):
            dirty.append(line)
        line += 1 + line // 8
    assert dirty == []
    assert line > 100
    engine.abort(request_ids)
    assert tokens_of(engine) == expected


@pytest.mark.parametrize("wait", range(1, 5))
def test_a_second_ctrl_c_may_end_the_wait_for_any_step(engine, wait):
    expected = tokens_of(engine)
    call = partial(engine.generate, PROMPTS, SIX, use_tqdm=False)
    # Two lines a wait: the check that the sampler was released, and the wait itself.
    assert interrupt_at(2 * wait, call, function="InlineStepHandle.result", times=2)
    assert is_clean(engine)
    assert tokens_of(engine) == expected


def test_ctrl_c_takes_effect_once_although_it_was_held():
    before = signal.getsignal(signal.SIGINT)
    lines = []
    with pytest.raises(KeyboardInterrupt):
        press_while_held(lines)
    assert lines == ["still here"]
    assert signal.getsignal(signal.SIGINT) is before


def test_each_ctrl_c_reaches_its_handler_once():
    pressed = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            assert pressed == []
            signal.raise_signal(signal.SIGINT)
            assert pressed == [signal.SIGINT]
        assert pressed == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_calls_in_another_thread_leave_the_signals_alone(engine):
    before = signal.getsignal(signal.SIGINT)
    seen = []
    with ThreadPoolExecutor(1) as thread:
        engine.add_request([[4, 5]], SIX, stream_callback=lambda output: seen.append(signal.getsignal(signal.SIGINT)))
        thread.submit(tokens_of, engine).result(60)
    assert engine.step()
    assert set(seen) == {before}


def test_an_interrupted_call_takes_nothing_from_those_before_it(engine):
    (alone,) = engine.generate([[9, 8, 7]], SIX, use_tqdm=False)
    for line in (400, 900, 1300):
        told = []
        (request_id,) = engine.add_request([[9, 8, 7]], SIX, stream_callback=told.append)
        assert interrupt_at(line, lambda: engine.generate(PROMPTS, SIX, use_tqdm=False))
        finished = []
        while not engine.is_finished():
            finished += engine.step()
        assert [(output["request_id"], output["token_ids"]) for output in finished] == [
            (request_id, alone["token_ids"])
        ]
        assert [token for output in told for token in output.output_tokens] == alone["token_ids"]
        assert is_clean(engine)


@pytest.mark.parametrize("tokens_before", [1, 3, 6])
def test_a_callback_that_raises_ends_the_call_that_it_interrupts_and_loses_nothing_else(engine, tokens_before):
    (expected,) = engine.generate([[4, 5]], SIX, use_tqdm=False)
    seen, others = [], []

    def callback(output):
        seen.append(output)
        if len(seen) == tokens_before:
            raise ZeroDivisionError("the callback's own")

    first = engine.add_request([[4, 5]], SIX, stream_callback=callback)
    second = engine.add_request([[4, 5]], SIX, stream_callback=others.append)
    with pytest.raises(ZeroDivisionError, match="own"):
        engine.generate(PROMPTS, TWICE, use_tqdm=False)
    finished = []
    while not engine.is_finished():
        finished += engine.step()
    assert [output["request_id"] for output in finished] == first + second
    assert [output["token_ids"] for output in finished] == [expected["token_ids"]] * 2
    assert [len(seen), len(others)] == [6, 6]
    assert is_clean(engine)


def test_what_finished_and_was_not_taken_goes_with_an_abort(engine):
    dropped, kept = engine.add_request([[4, 5], [6, 7]], SIX)
    engine.generate(PROMPTS, LONG, use_tqdm=False)
    engine.abort([dropped])
    assert [output["request_id"] for output in engine.step()] == [kept]
    assert is_clean(engine)


def test_a_callback_is_not_told_of_a_request_that_another_one_aborted(engine):
    told = []

    def abort_second(output):
        told.append(output.request_id)
        engine.abort([second])

    first = engine.add_request([[4, 5]], SIX, stream_callback=abort_second)
    (second,) = engine.add_request([[4, 5]], SIX, stream_callback=lambda output: told.append(output.request_id))
    while not engine.is_finished():
        engine.step()
    assert told == first * 6
    assert is_clean(engine)


@pytest.mark.parametrize("bad", [[10**9], [], [5] * 100_000])
def test_a_bad_later_prompt_leaves_none_of_those_before_it(engine, bad):
    for call in (lambda: engine.generate([[4, 5], bad], SIX, use_tqdm=False), lambda: engine.embed([[4, 5], bad])):
        with pytest.raises(InvalidRequestError):
            call()
        assert is_clean(engine)
