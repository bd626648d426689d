"""Requests with grammars, from the first word of them to the last: what waits, what is masked, what is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest

from atom_core.config.sections import StructuredOutputConfig
from atom_core.messages import (
    EngineOutput,
    EngineRequest,
    SamplingParams,
    ScheduledRequest,
    SchedulerOutput,
    StructuredOutputParams,
    ThinkingBudget,
)
from atom_core.structured_output import bits, compiler, constrained_requests, followed_text, work_budget
from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.compiler import (
    DEADLINE_SECONDS,
    QUEUE_SECONDS,
    Compilation,
    CompilerBusyError,
    GrammarCompiler,
)
from atom_core.structured_output.compilers import Compilers
from atom_core.structured_output.constrained_requests import ConstrainedRequests
from atom_core.structured_output.constraints.choice import choose
from atom_core.structured_output.constraints.grammar import GrammarError
from atom_core.structured_output.followed_text import TOKEN_BYTES, FollowedText, held_bytes
from atom_core.structured_output.llguidance.backend import LLGuidanceBackend
from atom_core.structured_output.mask_thread import MaskJob
from atom_core.structured_output.matcher import MAX_FORCED, Matcher
from atom_core.structured_output.vocabulary import Vocabulary
from atom_core.structured_output.work_budget import SECONDS_AT_ONCE, SECONDS_PER_TOKEN, StepBudget, WorkBudget
from atom_core.tokenization import Tokenizer

EOS = 2


@pytest.fixture(scope="module")
def tokenizer(tiny_llama) -> Tokenizer:
    return Tokenizer.from_folder(tiny_llama)


@pytest.fixture(scope="module")
def vocab_size(tokenizer) -> int:
    return 512


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def constrained(tokenizer, vocab_size) -> Iterator[ConstrainedRequests]:
    made = ConstrainedRequests(
        lambda: tokenizer,
        vocab_size=vocab_size,
        eos_token_ids=(EOS,),
        config=StructuredOutputConfig(backend="llguidance"),
    )
    yield made
    made.close()


def make_request(name="r", *, parent=None, eos=(EOS,), **params) -> EngineRequest:
    constraint = StructuredOutputParams(
        **{key: params.pop(key) for key in ("regex", "choice", "json") if key in params}
    )
    structured = None if constraint == StructuredOutputParams() else constraint
    return EngineRequest(
        name,
        [5],
        SamplingParams(max_tokens=9, structured_outputs=structured, **params),
        eos_token_ids=eos,
        parent_id=parent,
    )


def taken(constrained: ConstrainedRequests) -> dict[str, object]:
    """Why those that wait no longer cannot run, or None, once there are any."""
    while not (ready := constrained.take_ready()):
        time.sleep(0.001)
    return {request.request_id: refusal for request, refusal in ready}


def run_all(constrained: ConstrainedRequests, *requests: EngineRequest) -> dict[str, object]:
    for request in requests:
        constrained.hold(request)
    found: dict[str, object] = {}
    while constrained.has_waiting():
        found |= taken(constrained)
    return found


def step_of(*rows: tuple[str, int]) -> SchedulerOutput:
    return SchedulerOutput(0, [ScheduledRequest(name, 0, 1, [], samples) for name, samples in rows], [], [])


def allowed(mask: np.ndarray) -> set[int]:
    return {token for token in range(32 * len(mask)) if int(mask.view(np.uint32)[token // 32]) >> (token % 32) & 1}


def text(tokenizer: Tokenizer, letters: str) -> list[int]:
    return [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in letters]


# From a constraint to a grammar.


def test_requests_wait_for_their_grammars_and_then_have_masks(constrained, tokenizer):
    assert not constrained.has_waiting()
    assert constrained.rows(step_of(("r", 1))) == []
    assert run_all(constrained, make_request(regex="[ab]c")) == {"r": None}
    assert constrained.take_ready() == []
    assert constrained.rows(step_of(("r", 0), ("other", 1), ("r", 1))) == ["r"]
    masks = constrained.masks(["gone", "r"])
    assert (set(masks.ready), masks.errors, masks.late) == ({"r"}, {}, [])
    a, b, c = text(tokenizer, "abc")
    assert {a, b} <= allowed(masks.ready["r"])
    assert not {c, EOS} & allowed(masks.ready["r"])
    constrained.follow([EngineOutput("other", [a]), EngineOutput("r", [b])])
    assert allowed(constrained.masks(["r"]).ready["r"]) == {c}
    assert constrained.slow(["r", "gone"]) == []
    assert constrained.take_made() == []
    constrained.follow([EngineOutput("other", [], finish_reason="stop")])
    assert constrained.rows(step_of(("r", 1))) == ["r"]
    constrained.follow([EngineOutput("r", [c], finish_reason="stop")])
    assert constrained.rows(step_of(("r", 1))) == []
    constrained.follow([EngineOutput("r", [c])])


def test_what_can_come_next_alone_is_taken_ahead_where_nobody_asks_for_logprobs(constrained, tokenizer):
    plain, counted = make_request("plain", choice=["aaa"]), make_request("counted", choice=["aaa"], logprobs=0)
    run_all(constrained, plain, counted)
    constrained.masks(["plain", "counted"])
    found = constrained.take_forced(["plain", "counted", "gone"])
    assert set(found) == {"plain"}
    assert tokenizer.decode([token for token in found["plain"] if token != EOS]) == "aaa"
    assert found["plain"][-1] == EOS


def test_tokens_without_a_choice_are_sampled_if_the_settings_say_so(tokenizer, vocab_size):
    config = StructuredOutputConfig(backend="llguidance", jump_forward=False)
    made = ConstrainedRequests(lambda: tokenizer, vocab_size=vocab_size, eos_token_ids=(EOS,), config=config)
    run_all(made, make_request(choice=["aaa"]))
    made.masks(["r"])
    assert made.take_forced(["r"]) == {}
    made.close()


def test_a_request_ends_where_its_own_stop_tokens_do(constrained, tokenizer):
    (stop,) = text(tokenizer, "z")
    run_all(constrained, make_request("stops", regex="a*", stop_token_ids=[stop]), make_request("goes on", regex="a*"))
    masks = constrained.masks(["stops", "goes on"]).ready
    assert {stop, EOS} <= allowed(masks["stops"])
    assert stop not in allowed(masks["goes on"])


def test_a_constraint_that_cannot_be_is_refused(constrained):
    refusal = run_all(constrained, make_request(regex="[a"))["r"]
    assert refusal.code == "invalid_grammar"
    assert "regex" in refusal.reason or "[a" in refusal.reason
    assert not constrained.has_waiting()


def test_what_waits_can_be_aborted_and_nothing_else(constrained):
    constrained.hold(make_request("first", regex="a"))
    constrained.hold(make_request("second", regex="a"))
    outputs = constrained.abort(["second", "gone"])
    assert [(output.request_id, output.new_token_ids, output.finish_reason) for output in outputs] == [
        ("second", [], "abort")
    ]
    assert taken(constrained) == {"first": None}
    assert constrained.abort(["first"]) == []


def compilation_of(constrained: ConstrainedRequests, name: str) -> Compilation:
    """What a request waits for; it is asked for once the vocabulary is there."""
    while constrained._waiting[name].compilation is None:
        assert not constrained.take_ready()
        time.sleep(0.001)
    return constrained._waiting[name].compilation  # type: ignore[return-value]


@pytest.fixture
def slow_work(monkeypatch) -> Iterator[threading.Event]:
    """Grammars are compiled once this is set."""
    may_end = threading.Event()
    compile_grammar = LLGuidanceBackend.compile

    def wait_and_compile(backend, params):
        assert may_end.wait(30)
        return compile_grammar(backend, params)

    monkeypatch.setattr(LLGuidanceBackend, "compile", wait_and_compile)
    yield may_end
    may_end.set()


def test_whoever_is_aborted_waits_for_its_grammar_no_longer(constrained, slow_work):
    for name in ("first", "second"):
        constrained.hold(make_request(name, regex="a"))
    shared = compilation_of(constrained, "first")
    assert compilation_of(constrained, "second") is shared
    assert shared.num_waiting == 2
    constrained.abort(["first"])
    assert shared.num_waiting == 1
    slow_work.set()
    assert taken(constrained) == {"second": None}
    assert shared.num_waiting == 0


@pytest.mark.parametrize(("seconds", "code"), [(DEADLINE_SECONDS, "invalid_grammar"), (QUEUE_SECONDS, "queue_full")])
def test_a_grammar_that_takes_too_long_is_refused(tokenizer, vocab_size, slow_work, seconds, code):
    clock, config = Clock(), StructuredOutputConfig(backend="llguidance")
    made = ConstrainedRequests(
        lambda: tokenizer, vocab_size=vocab_size, eos_token_ids=(EOS,), config=config, clock=clock
    )
    names = ["r"] if code == "invalid_grammar" else ["busy", "busier", "r"]
    for name in names:
        made.hold(make_request(name, regex=f"{name}"))
    compilation = compilation_of(made, "r")
    while compilation._begun is None and code == "invalid_grammar":
        time.sleep(0.001)
    clock.now = seconds
    assert "r" not in {request.request_id for request, _ in made.take_ready()}
    clock.now = seconds + 0.001
    refusals: dict = {}
    while "r" not in refusals:
        refusals |= taken(made)
    assert refusals["r"].code == code
    assert compilation.num_waiting == 0
    slow_work.set()
    made.close()


def test_closing_ends_the_threads_of_the_compilers(constrained):
    run_all(constrained, make_request(regex="a"))
    compilers: Compilers = constrained._compilers.result()
    constrained.close()
    for backend in ("llguidance", "xgrammar"):
        with pytest.raises(RuntimeError, match="shutdown"):
            compilers.submit(backend, StructuredOutputParams(regex="b"))
    never = ConstrainedRequests(lambda: None, vocab_size=1, eos_token_ids=())  # type: ignore[arg-type, return-value]
    never.close()

    def fail() -> Tokenizer:
        raise OSError("no tokenizer")

    failed = ConstrainedRequests(fail, vocab_size=1, eos_token_ids=())
    assert run_all(failed, make_request(regex="a"))["r"].reason == "no tokenizer"  # type: ignore[attr-defined]
    failed.close()


def test_a_thinking_budget_ends_with_the_thinking(constrained, tokenizer):
    budget = ThinkingBudget(0, "b", "c", is_open=True)
    assert run_all(constrained, make_request(thinking_budget=budget), make_request("free")) == {"r": None, "free": None}
    assert constrained.rows(step_of(("r", 1), ("free", 1))) == ["r"]
    (end,) = text(tokenizer, "c")
    assert allowed(constrained.masks(["r"]).ready["r"]) == {end}
    constrained.follow([EngineOutput("r", [end])])
    assert constrained.rows(step_of(("r", 1))) == []


def test_samples_of_a_request_share_its_budget_of_work(constrained):
    run_all(constrained, *(make_request(f"p/{i}", parent="p", regex="a+") for i in range(2)), make_request(regex="a+"))
    budgets = {name: followed.matcher._budget for name, followed in constrained._followed.items()}
    assert budgets["p/0"] is budgets["p/1"] is not budgets["r"]
    assert budgets["p/0"]._most == pytest.approx(SECONDS_AT_ONCE + 2 * SECONDS_PER_TOKEN)
    assert budgets["r"]._most == pytest.approx(SECONDS_AT_ONCE + SECONDS_PER_TOKEN)


# What is held in memory.


class Free:
    """A `Parser` that allows every token."""

    is_accepting, error = False, None

    def fill(self, words: np.ndarray) -> None:
        words.fill(-1)

    def accept(self, token_id: int) -> None:
        """Any token will do."""


def make_text(num_tokens=0, grammar=None) -> FollowedText:
    matcher = Matcher(Free(), 64, [EOS])
    matcher.accept([5] * num_tokens)
    return FollowedText(matcher, grammar, None)


def test_texts_hold_a_kib_a_token_and_their_grammars_once():
    assert TOKEN_BYTES == followed_text.TOKEN_BYTES == 1024
    grammar = Grammar(Free, lambda: 500)
    texts = [make_text(3, grammar), make_text(1, grammar), make_text(2)]
    assert [one.own_bytes for one in texts] == [3072, 1024, 2048]
    assert [one.num_bytes for one in texts] == [3572, 1524, 2048]
    assert held_bytes(texts) == 6 * 1024 + 500
    assert held_bytes([]) == 0


def test_what_texts_may_hold_together_is_looked_at_every_sixteen_steps(constrained, monkeypatch):
    assert (constrained_requests.BYTES_FOR_NEW, constrained_requests.MAX_BYTES) == (2**30, 2**31)
    assert constrained_requests.STEPS_BETWEEN_LOOKS == 16
    run_all(constrained, make_request("small", regex="a+"), make_request("large", regex="a+"))
    token = min(allowed(constrained.masks(["small"]).ready["small"]))
    constrained.follow([EngineOutput("large", [token])])
    held = constrained._num_bytes()
    monkeypatch.setattr(constrained_requests, "MAX_BYTES", held)
    for _ in range(32):
        assert constrained.masks([]).errors == {}
    monkeypatch.setattr(constrained_requests, "MAX_BYTES", held - 1)
    told = [constrained.masks(["small", "large"]).errors for _ in range(16)]
    assert [set(errors) for errors in told].count({"large"}) == 1
    assert [set(errors) for errors in told].count(set()) == 15


def test_a_new_text_waits_for_room_unless_it_is_alone(constrained, monkeypatch):
    monkeypatch.setattr(constrained_requests, "BYTES_FOR_NEW", 0)
    constrained.hold(make_request("first", regex="a+"))
    assert taken(constrained) == {"first": None}
    constrained.hold(make_request("second", regex="b+"))
    compilation = compilation_of(constrained, "second")
    compilation.grammar.result(30)
    assert constrained.take_ready() == []
    held = constrained._num_bytes() + compilation.grammar.result().num_bytes()
    monkeypatch.setattr(constrained_requests, "BYTES_FOR_NEW", held)
    assert taken(constrained) == {"second": None}


# Masks.


def test_a_mask_of_one_token_is_read_back_and_no_other():
    for token in (0, 1, 31, 32, 63):
        mask = bits.one_token(token, 2)
        assert mask.dtype == np.int32
        assert allowed(mask) == {token}
        assert bits.only_token(mask) == token
    for several in ((), (0, 1), (0, 32), (31, 30), (5, 63)):
        mask = np.zeros(2, dtype=np.int32)
        for token in several:
            mask |= bits.one_token(token, 2)
        assert bits.only_token(mask) is None


class Scripted(Free):
    """Allows, one after the other, what it is told."""

    def __init__(self, *steps: set[int], ends: bool = False) -> None:
        self._steps, self.is_accepting, self.followed = list(steps), ends, []

    def fill(self, words: np.ndarray) -> None:
        words[:] = 0
        for token in self._steps[len(self.followed)]:
            words |= bits.one_token(token, len(words))

    def accept(self, token_id: int) -> None:
        self.followed.append(token_id)


def test_end_tokens_are_sampled_only_where_the_grammar_can_end():
    assert allowed(Matcher(Scripted({5, EOS}), 40, [EOS, 39, 99]).mask()) == {5}
    assert allowed(Matcher(Scripted({5}, ends=True), 40, [EOS, 39, 99]).mask()) == {5, EOS, 39}
    assert allowed(Matcher(Scripted({EOS}), 40, [EOS]).mask()) == {EOS}
    none = Matcher(Scripted(set()), 40, [EOS])
    assert allowed(none.mask()) == set()
    assert none.error == "no token can come next"


def test_forced_tokens_are_followed_until_there_is_a_choice_or_the_end():
    parser = Scripted({5}, {6}, {7, 8}, {9})
    matcher = Matcher(parser, 40, [EOS])
    assert not matcher.has_mask
    assert matcher.take_forced() == [5, 6]
    assert parser.followed == [5, 6]
    assert matcher.num_tokens == 2
    assert matcher.take_forced() == []
    assert allowed(matcher.mask()) == {5}
    matcher.accept([5])
    assert allowed(matcher.mask()) == {6}
    assert matcher.has_mask
    matcher.accept([7])
    assert matcher.error == "token 7 came where only 6 could"
    ends = Matcher(Scripted({5}, {EOS}), 40, [EOS])
    assert ends.take_forced() == [5, EOS]
    assert ends.num_tokens == 1
    assert MAX_FORCED == 128
    limited = Matcher(Scripted(*[{5}] * 9), 40, [EOS], max_forced=3)
    assert limited.take_forced() == [5, 5, 5]
    stopped = Matcher(Scripted({5}, {6}), 40, [EOS])
    assert stopped.take_forced(lambda: False) == []
    stopped.mask()
    assert stopped.take_forced(lambda: False) == [5]  # its mask was there already


def test_work_is_counted_and_bounded():
    assert (
        *(0.5, 0.02),
        *(0.005, 0.1),
    ) == (SECONDS_AT_ONCE, SECONDS_PER_TOKEN, work_budget.SLOW_SECONDS, work_budget.STEP_SECONDS)
    budget = WorkBudget(lambda: 0.0)
    budget.spend(0.5)
    assert not budget.is_used_up
    assert budget.used == 0.5
    budget.spend(0.01)
    assert budget.is_used_up
    budget.refill()
    assert not budget.is_used_up
    clock = Clock()
    step = StepBudget(clock)
    clock.now = 0.099
    assert not step.is_used_up
    clock.now = 0.1
    assert step.is_used_up


def test_a_mask_is_slow_from_five_milliseconds_on():
    for seconds, is_slow in ((0.005, False), (0.0051, True)):
        clock = Clock()

        class Slow(Free):
            def fill(self, words: np.ndarray, clock=clock, seconds=seconds) -> None:
                clock.now += seconds
                words.fill(-1)

        matcher = Matcher(Slow(), 64, [EOS], budget=WorkBudget(clock))
        assert not matcher.is_slow
        matcher.mask()
        assert matcher.is_slow is is_slow
        assert matcher.work_so_far == seconds


def test_a_late_mask_follows_the_tokens_before_it_and_never_raises():
    parser = Scripted({5}, {6})
    job = MaskJob(Matcher(parser, 40, [EOS]), [5])
    assert (job.is_done, job.is_wanted) == (False, True)
    job.run()
    assert job.is_done
    assert parser.followed == [5]
    assert job.matcher.has_mask
    broken = MaskJob(Matcher(Scripted(), 40, [EOS]))
    broken.run()
    assert broken.is_done
    assert broken.matcher.error == "IndexError of the library"


# Compilers.


def test_a_compiler_keeps_so_many_grammars_for_so_long():
    assert (DEADLINE_SECONDS, QUEUE_SECONDS) == (5.0, 20.0)
    assert (compiler.MAX_GRAMMARS, compiler.MAX_BYTES, compiler.NUM_THREADS) == (256, 2**28, 2)
    made = GrammarCompiler(lambda params: Grammar(Free, lambda: 10), max_bytes=20)
    for name in ("a", "b", "c"):
        made.submit(StructuredOutputParams(regex=name)).grammar.result(30)
    assert len(made) == 3 or made.submit(StructuredOutputParams(regex="c")) is not None
    again = made.submit(StructuredOutputParams(regex="c"))
    assert len(made) == 2
    assert made.submit(StructuredOutputParams(regex="c")) is again
    assert made.submit(StructuredOutputParams(regex="b")).grammar.result(30).num_bytes() == 10
    made.close()


def test_a_deadline_is_met_by_what_takes_no_longer():
    clock = Clock()
    compilation = Compilation(StructuredOutputParams(regex="a"), clock)
    clock.now = 20.0
    assert compilation.overdue() is None
    clock.now = 20.1
    assert isinstance(compilation.overdue(), CompilerBusyError)
    compilation._begun = 20.1
    clock.now = 25.1
    assert compilation.overdue() is None
    clock.now = 25.2
    assert isinstance(compilation.overdue(), GrammarError)
    compilation.grammar.set_result(None)
    assert compilation.overdue() is None


def test_work_that_failed_by_itself_is_tried_anew_and_a_bad_grammar_is_not():
    errors: dict[str, BaseException | None] = {
        "bad": GrammarError("bad"),
        "out of memory": MemoryError("memory"),
        "good": None,
    }
    calls: list[str] = []

    def compile_grammar(params: StructuredOutputParams) -> str:
        calls.append(str(params.regex))
        if (error := errors[str(params.regex)]) is not None:
            raise error
        return "grammar"

    made = GrammarCompiler(compile_grammar)
    for name, error in errors.items():
        for _ in range(2):
            outcome: Future = made.submit(StructuredOutputParams(regex=name)).grammar
            assert outcome.exception(30) is error
    assert calls == ["bad", "out of memory", "out of memory", "good"]
    made.close()


async def test_whoever_awaits_a_bad_grammar_is_told():
    def refuse(params: StructuredOutputParams) -> None:
        raise GrammarError("bad")

    made = GrammarCompiler(refuse)
    with pytest.raises(GrammarError, match="bad"):
        await made.check_async(StructuredOutputParams(regex="a"))
    with pytest.raises(GrammarError, match="bad"):
        made.check(StructuredOutputParams(regex="a"))
    made.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        made.submit(StructuredOutputParams(regex="b"))


def test_each_backend_compiles_and_the_setting_says_which_is_tried(tokenizer, vocab_size):
    constraint = StructuredOutputParams(json={"type": "boolean"})
    made = Compilers(tokenizer, vocab_size, [EOS])
    assert made.choose(constraint) == choose(constraint, "auto", True)[0]
    assert len(made.choose(constraint)) == 2
    for backend in made.choose(constraint):
        grammar = made.submit(backend, constraint).grammar.result(60)
        words = np.zeros(-(-vocab_size // 32), dtype=np.int32)
        grammar.start().fill(words)
        assert set(text(tokenizer, "tf")) <= allowed(words)
    made.close()
    for backend in ("llguidance", "xgrammar"):
        one = Compilers(tokenizer, vocab_size, [EOS], backend)
        assert one.choose(constraint) == choose(constraint, backend, True)[0]
        assert one.choose(constraint)[0] == backend
        one.close()


# The vocabulary.


def test_a_vocabulary_knows_what_is_no_text(tokenizer):
    size = 520  # more rows than tokens
    vocabulary = Vocabulary(tokenizer, size)
    assert len(vocabulary.tokens) == size
    empty = [token for token, held in enumerate(vocabulary.tokens) if not held]
    assert set(vocabulary.special_token_ids) == set(empty) | set(tokenizer.special_token_ids)
    assert vocabulary.special_token_ids == sorted(vocabulary.special_token_ids)
    assert vocabulary.encode("ab") == vocabulary.encode(b"ab") == tokenizer.encode("ab", add_special_tokens=False)
    special = tokenizer.id_to_text(EOS)
    assert vocabulary.split(f"a{special}b") == ["a", EOS, "b"]
    assert vocabulary.split("ab") == ["ab"]
    few = Vocabulary(tokenizer, EOS)
    assert EOS not in few.special_token_ids
