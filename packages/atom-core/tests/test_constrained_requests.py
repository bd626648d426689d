"""Requests with grammars, from the first word of them to the last: what waits, what is masked, what is forgotten."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from atom_core.messages import (
    EngineOutput,
    EngineRequest,
    SamplingParams,
    ScheduledRequest,
    SchedulerOutput,
    StructuredOutputParams,
    ThinkingBudget,
)
from atom_core.structured_output import constrained_requests, followed_text
from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.compiler import (
    DEADLINE_SECONDS,
    QUEUE_SECONDS,
    Compilation,
)
from atom_core.structured_output.compilers import Compilers
from atom_core.structured_output.config import StructuredOutputConfig
from atom_core.structured_output.constrained_requests import ConstrainedRequests
from atom_core.structured_output.followed_text import TOKEN_BYTES, FollowedText, held_bytes
from atom_core.structured_output.llguidance.backend import LLGuidanceBackend
from atom_core.structured_output.matcher import Matcher
from atom_core.structured_output.work_budget import SECONDS_AT_ONCE, SECONDS_PER_TOKEN
from atom_core.tokenization import Tokenizer
from clock import Clock

EOS, VOCAB_SIZE = 2, 512


@pytest.fixture(scope="module")
def tokenizer(tiny_llama) -> Tokenizer:
    return Tokenizer.from_folder(tiny_llama)


@pytest.fixture
def constrained(tokenizer) -> Iterator[ConstrainedRequests]:
    made = ConstrainedRequests(
        lambda: tokenizer,
        vocab_size=VOCAB_SIZE,
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


def test_tokens_without_a_choice_are_sampled_if_the_settings_say_so(tokenizer):
    config = StructuredOutputConfig(backend="llguidance", jump_forward=False)
    made = ConstrainedRequests(lambda: tokenizer, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,), config=config)
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
    while constrained._waiting._waiting[name].compilation is None:
        assert not constrained.take_ready()
        time.sleep(0.001)
    return constrained._waiting._waiting[name].compilation  # type: ignore[return-value]


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
def test_a_grammar_that_takes_too_long_is_refused(tokenizer, slow_work, seconds, code):
    clock, config = Clock(), StructuredOutputConfig(backend="llguidance")
    made = ConstrainedRequests(
        lambda: tokenizer, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,), config=config, clock=clock
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
    compilers: Compilers = constrained._waiting.compilers.result()
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
