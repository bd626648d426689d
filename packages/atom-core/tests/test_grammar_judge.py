"""Grammars are judged in a process that can be killed; what passes costs the engine little."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import msgspec
import pytest

from atom_core import InvalidRequestError, LLMEngine, SamplingParams, StructuredOutputParams
from atom_core.structured_output.backend import Parser
from atom_core.structured_output.constraints.choice import choose
from atom_core.structured_output.constraints.grammar import GrammarError, check_limits
from atom_core.structured_output.constraints.work import MAX_PATTERN_SIZE, pattern_size, too_much_work
from atom_core.structured_output.judge import JudgeError, Judges
from atom_core.structured_output.judge.limits import LIMITS
from atom_core.structured_output.llguidance.backend import LEAST_BYTES, TOKEN_BYTES, LLGuidanceBackend
from atom_core.structured_output.matcher import Matcher
from atom_core.structured_output.vocabulary import Vocabulary
from atom_core.structured_output.work_budget import SECONDS_AT_ONCE, WorkBudget


def properties(count: int, **schema: object) -> dict[str, object]:
    names = [f"p{index}" for index in range(count)]
    return {"type": "object", "properties": dict.fromkeys(names, schema), "required": names}


def steps_of(*steps: int) -> dict[str, object]:
    found = {f"p{step}": {"type": "integer", "multipleOf": step} for step in steps}
    return {"type": "object", "properties": found, "required": list(found)}


def rules(count: int, rule: str) -> str:
    return "start: r0\n" + "\n".join(rule.format(index, index + 1) for index in range(count)) + f'\nr{count}: "c"\n'


# What stopped streams, filled memory, or ended in an internal error.
HOSTILE = {
    "nested repeats": {"regex": "((a{1000}){1000}){999}"},
    "optional repeats": {"regex": "(a?){500}a{500}"},
    "large steps": {"json": steps_of(*(2_999_999 + 2 * index for index in range(8)))},
    "one large step": {"json": {"type": "integer", "multipleOf": 999_983}},
    "many properties": {"json": {**properties(2_000, type="integer"), "required": []}},
    "many ambiguous rules": {"grammar": rules(1_000, 'r{0}: /[a-z]/ r{1} | r{1} "b"')},
}


@pytest.fixture(scope="module")
def judges():
    judges = Judges()
    yield judges
    judges.close()


@pytest.mark.parametrize("constraint", HOSTILE.values(), ids=HOSTILE)
def test_what_costs_too_much_is_refused_in_words(engine, constraint):
    begun = time.process_time()
    with pytest.raises(InvalidRequestError, match="too much work|at most|too long|more than") as caught:
        engine.generate([[5]], SamplingParams(structured_outputs=StructuredOutputParams(**constraint)), use_tqdm=False)
    assert caught.value.param == "structured_outputs"
    assert time.process_time() - begun < 0.5, "the work was done in this process"


ORDINARY = {
    "prices": {"json": {**properties(30, type="number", multipleOf=0.01), "additionalProperties": False}},
    "long texts": {"json": properties(8, type="string", maxLength=2_000)},
    "a pattern of some length": {"regex": r"([a-z0-9._-]{1,64}@)?([a-z0-9-]{1,63}\.){1,8}[a-z]{2,24}"},
    "a grammar of many rules": {"grammar": rules(300, 'r{0}: "a" r{1} | "b"')},
    "150 optional properties": {"json": {**properties(150, type="integer"), "required": []}},
    "a thousand texts": {"choice": [f"text number {index}" for index in range(1_000)]},
}


@pytest.mark.parametrize("constraint", ORDINARY.values(), ids=ORDINARY)
def test_what_people_write_passes(judges, constraint):
    params = StructuredOutputParams(**constraint)
    check_limits(params)
    judges.check(params)


# These are stopped by their text alone, so the judge is shown them directly.
UNJUDGED = [StructuredOutputParams(**HOSTILE[name]) for name in ("large steps", "one large step")]


@pytest.mark.parametrize("params", UNJUDGED)
def test_a_judge_is_killed_by_what_takes_too_long_and_another_one_judges(judges, params):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with pytest.raises(GrammarError, match="processor time"):
        judges.check(params)
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < LIMITS.cpu_seconds + 2
    assert not judges.processes.idle
    judges.check(StructuredOutputParams(regex="a+"))


def test_a_judge_that_wants_too_much_memory_ends_with_the_constraint_refused():
    """With hardly any memory allowed, the constraint that is killed for its time is killed for its memory first."""
    judges = Judges(msgspec.structs.replace(LIMITS, memory_bytes=1 << 20, cpu_seconds=60.0))
    with pytest.raises(GrammarError, match="memory"):
        judges.check(UNJUDGED[1])
    judges.close()


def test_constraints_of_two_threads_are_judged_side_by_side(judges):
    def judge_slow() -> None:
        with contextlib.suppress(GrammarError):
            judges.check(UNJUDGED[0])

    slow = threading.Thread(target=judge_slow)
    slow.start()
    judges.check(StructuredOutputParams(regex="b+"))
    assert slow.is_alive(), "an ordinary constraint waited for a slow one"
    slow.join()


def test_a_judge_that_was_killed_says_nothing_against_a_constraint_that_comes_later(judges):
    judges.check(StructuredOutputParams(regex="a+"))
    (judge,) = judges.processes.idle
    judge._process.kill()
    judge._process.wait()
    judges.check(StructuredOutputParams(regex="a+b"))


def test_a_judge_that_is_stopped_is_ended_and_another_one_judges(judges):
    judges.check(StructuredOutputParams(regex="a+"))
    (judge,) = judges.processes.idle
    os.kill(judge._process.pid, signal.SIGSTOP)
    with pytest.raises(JudgeError, match=r"did not answer within 0\.1 s: try again later"):
        judges.check(StructuredOutputParams(regex="a+b"), clock_seconds=0.1)
    assert judge._process.poll() == -signal.SIGKILL
    judges.check(StructuredOutputParams(regex="a+b"))


def test_a_judge_that_cannot_start_is_no_fault_of_the_constraint(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(JudgeError, match="ended with code 1"):
        Judges().check(StructuredOutputParams(regex="a+"))


def test_judges_end_with_the_process_that_asks_them():
    code = (
        "import os, signal\nfrom atom_core import StructuredOutputParams\n"
        "from atom_core.structured_output.judge import shared_judges\n"
        "judges = shared_judges()\njudges.check(StructuredOutputParams(regex='a'))\n"
        "print(judges.processes.idle[0]._process.pid, flush=True)\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60, check=False)
    assert ended.returncode == -signal.SIGTERM
    deadline = time.monotonic() + 5
    while os.path.exists(f"/proc/{int(ended.stdout)}/exe") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{int(ended.stdout)}/exe")


@pytest.mark.parametrize(
    ("pattern", "size"),
    [("abc", 3), ("a{10}", 10), ("(ab{3}){2,5}c", 21), (r"[a-z{9}]\{2\}x{2,}", 7), ("(a|(b{4})){3}", 15), ("{5}(", 0)],
)
def test_sizes_of_patterns(pattern, size):
    assert pattern_size(pattern) == size


def test_work_is_judged_in_patterns_wherever_they_stand():
    large = f"a{{{MAX_PATTERN_SIZE + 1}}}"
    assert too_much_work("regex", large)
    assert too_much_work("json", {"properties": {"a": {"items": [{"pattern": large}]}}})
    assert too_much_work("structural_tag", {"format": {"type": "regex", "pattern": large}})
    assert too_much_work("regex", f"a{{{MAX_PATTERN_SIZE}}}") is None


def test_xgrammar_gets_no_schema_that_it_would_compile_for_long():
    small, large = (StructuredOutputParams(json=properties(count, type="integer")) for count in (100, 200))
    for setting in ("auto", "xgrammar"):
        assert choose(small, setting, True)[0][0] == "xgrammar"
        assert choose(large, setting, True)[0] == ("llguidance",)


def test_a_grammar_counts_the_states_that_texts_leave_in_it(engine: LLMEngine):
    assert engine.tokenizer is not None
    backend = LLGuidanceBackend(Vocabulary(engine.tokenizer, engine.info.vocab_size), engine.info.eos_token_ids)
    grammar = backend.compile(StructuredOutputParams(json=properties(4, type="string")))
    at_start = grammar.num_bytes()
    assert at_start > LEAST_BYTES
    parser = grammar.start()
    for token_id in engine.tokenizer.encode('{"p0": "'):
        parser.accept(token_id)
    assert grammar.num_bytes() >= at_start + TOKEN_BYTES


class Slow:
    """A `Parser` whose masks take so many seconds of work."""

    is_accepting, error = False, None

    def __init__(self, seconds: float) -> None:
        self._seconds, self.now = seconds, 0.0

    def fill(self, words) -> None:
        self.now += self._seconds
        words.fill(-1)

    def accept(self, token_id: int) -> None:
        pass


@pytest.mark.parametrize(("seconds", "ends"), [(0.01, False), (0.05, True), (SECONDS_AT_ONCE + 0.01, True)])
def test_masks_have_a_budget_of_work(seconds, ends):
    slow = Slow(seconds)
    parser: Parser = slow
    matcher = Matcher(parser, 64, [2], budget=WorkBudget(lambda: slow.now))
    for _ in range(200):
        matcher.mask()
        matcher.accept([5])
    assert ("too much work" in (matcher.error or "")) == ends


def test_a_slow_grammar_ends_its_own_request_only(make_engine, monkeypatch):
    engine = make_engine(structured_output_backend="llguidance")
    monkeypatch.setattr("atom_core.structured_output.work_budget.SECONDS_AT_ONCE", 1e-9)
    monkeypatch.setattr("atom_core.structured_output.work_budget.SECONDS_PER_TOKEN", 1e-9)
    constrained = SamplingParams(structured_outputs=StructuredOutputParams(regex="[a-z]{40}"), max_tokens=20)
    slow, other = engine.generate([[5], [6]], [constrained, SamplingParams(max_tokens=20)], use_tqdm=False)
    assert slow["finish_reason"] == "error"
    assert "too much work" in slow["error"]
    assert other["num_tokens_output"] == 20
