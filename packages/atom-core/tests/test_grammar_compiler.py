"""Grammars are compiled in threads with deadlines, kept for a while, and awaited."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from atom_core import InvalidRequestError, SamplingParams, StructuredOutputParams
from atom_core.engine.inputs.input_processor import InputProcessor
from atom_core.engine.inputs.validation import RequestLimits
from atom_core.structured_output import GrammarCompiler, GrammarError
from atom_core.structured_output.compiler import (
    DEADLINE_SECONDS,
    NUM_THREADS,
    QUEUE_SECONDS,
    Compilation,
    CompilerBusyError,
)
from atom_core.structured_output.constraints.checking import check_grammar


def test_compiled_grammars_are_kept_up_to_a_number():
    compiler = GrammarCompiler(check_grammar, max_grammars=3)
    first = compiler.submit(StructuredOutputParams(regex="a"))
    assert compiler.submit(StructuredOutputParams(regex="a")) is first
    for text in "bcd":
        compiler.check(StructuredOutputParams(regex=text))
    assert len(compiler) == 3
    assert compiler.submit(StructuredOutputParams(regex="a")) is not first


class SlowWork:
    """Compiles when told to; `clock` moves by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.begun: list[StructuredOutputParams] = []
        self.may_end = threading.Event()
        self.compiler = GrammarCompiler(self._compile, clock=lambda: self.now)

    def submit(self, text: str) -> Compilation:
        return self.compiler.submit(StructuredOutputParams(regex=text))

    def occupy_threads(self) -> list[Compilation]:
        """As many grammars as there are threads, all of them begun."""
        busy = [self.submit(f"busy{number}") for number in range(NUM_THREADS)]
        while len(self.begun) < NUM_THREADS:
            time.sleep(0.001)
        return busy

    def _compile(self, params: StructuredOutputParams) -> str:
        self.begun.append(params)
        assert self.may_end.wait(30)
        return params.regex


@pytest.fixture
def slow():
    slow = SlowWork()
    yield slow
    slow.may_end.set()
    slow.compiler.close()


def test_a_deadline_counts_the_work(slow):
    busy, waiting = slow.occupy_threads(), slow.submit("waiting")
    slow.now = DEADLINE_SECONDS + 1
    assert waiting.overdue() is None
    for compilation in busy:
        assert isinstance(compilation.overdue(), GrammarError)
        assert "took longer than 5 s" in str(compilation.overdue())
    slow.may_end.set()
    assert waiting.grammar.result(20) == "waiting"
    assert waiting.overdue() is None


def test_a_deadline_begins_with_the_work():
    now, overdue = [0.0], []
    compilation = Compilation(StructuredOutputParams(regex="a"), lambda: now[0])

    def work(params: StructuredOutputParams) -> None:
        for seconds in (DEADLINE_SECONDS - 1, 2):
            now[0] += seconds
            overdue.append(compilation.overdue())

    now[0] = QUEUE_SECONDS - 1
    compilation.run(work)
    assert overdue[0] is None
    assert isinstance(overdue[1], GrammarError)


def test_a_grammar_that_is_never_begun_says_that_too_much_is_being_done(slow):
    slow.occupy_threads()
    waiting = slow.submit("waiting")
    slow.now = QUEUE_SECONDS + 1
    assert isinstance(waiting.overdue(), CompilerBusyError)


def test_what_nobody_waits_for_is_not_begun(slow):
    slow.occupy_threads()
    left, wanted = slow.submit("left"), slow.submit("wanted")
    assert slow.submit("wanted") is wanted
    for compilation in (left, wanted):
        slow.compiler.leave(compilation)
    assert slow.submit("left") is not left
    slow.compiler.leave(slow.submit("left"))
    slow.may_end.set()
    assert wanted.grammar.result(20) == "wanted"
    slow.compiler.check(StructuredOutputParams(regex="last"))
    assert [params.regex for params in slow.begun].count("left") == 1


@pytest.mark.parametrize(("seconds", "error"), [(DEADLINE_SECONDS, GrammarError), (QUEUE_SECONDS, CompilerBusyError)])
def test_who_waits_for_a_grammar_is_told_what_is_wrong(slow, seconds, error):
    if error is CompilerBusyError:
        slow.occupy_threads()
    params = StructuredOutputParams(regex="a")

    async def wait():
        checking = asyncio.ensure_future(slow.compiler.check_async(params))
        await asyncio.sleep(0)
        while error is GrammarError and not slow.begun:
            await asyncio.sleep(0.001)
        slow.now += seconds + 1
        await checking

    with pytest.raises(error):
        asyncio.run(wait())
    if error is GrammarError:  # it is still being worked on, and known to take too long
        with pytest.raises(error):
            slow.compiler.check(params)


def test_a_grammar_can_be_awaited(slow):
    slow.may_end.set()
    asyncio.run(slow.compiler.check_async(StructuredOutputParams(regex="a")))
    slow.compiler.check(StructuredOutputParams(regex="a"))
    assert len(slow.begun) == 1


def test_an_overload_of_the_compilers_is_no_fault_of_the_grammar():
    now = [0.0]
    inputs = InputProcessor(RequestLimits(64, 512, 8), eos_token_ids=(2,))
    may_end = threading.Event()
    inputs._grammars = GrammarCompiler(lambda params: may_end.wait(30), clock=lambda: now[0])
    for number in range(NUM_THREADS):
        inputs._grammars.submit(StructuredOutputParams(regex=f"busy{number}"))

    async def ask():
        params = SamplingParams(structured_outputs=StructuredOutputParams(regex="a"))
        checking = asyncio.ensure_future(inputs.check_grammar_async(params))
        await asyncio.sleep(0.05)
        now[0] += QUEUE_SECONDS + 1
        await checking

    with pytest.raises(InvalidRequestError) as caught:
        asyncio.run(ask())
    may_end.set()
    assert (caught.value.param, caught.value.code) == ("structured_outputs", "queue_full")
