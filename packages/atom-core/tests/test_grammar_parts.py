"""What grammars are made of, part by part: masks, budgets of work, compilers, vocabularies."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from atom_core.messages import (
    StructuredOutputParams,
)
from atom_core.structured_output import bits, compiler, work_budget
from atom_core.structured_output.backend import Grammar
from atom_core.structured_output.compiler import (
    DEADLINE_SECONDS,
    QUEUE_SECONDS,
    Compilation,
    CompilerBusyError,
    GrammarCompiler,
)
from atom_core.structured_output.compilers import Compilers
from atom_core.structured_output.constraints.choice import choose
from atom_core.structured_output.constraints.grammar import GrammarError
from atom_core.structured_output.mask_thread import MaskJob
from atom_core.structured_output.matcher import MAX_FORCED, Matcher
from atom_core.structured_output.vocabulary import Vocabulary
from atom_core.structured_output.work_budget import SECONDS_AT_ONCE, SECONDS_PER_TOKEN, StepBudget, WorkBudget
from atom_core.tokenization import Tokenizer
from clock import Clock

EOS, VOCAB_SIZE = 2, 512


@pytest.fixture(scope="module")
def tokenizer(tiny_llama) -> Tokenizer:
    return Tokenizer.from_folder(tiny_llama)


def allowed(mask: np.ndarray) -> set[int]:
    return {token for token in range(32 * len(mask)) if int(mask.view(np.uint32)[token // 32]) >> (token % 32) & 1}


def text(tokenizer: Tokenizer, letters: str) -> list[int]:
    return [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in letters]


class Free:
    """A `Parser` that allows every token."""

    is_accepting, error = False, None

    def fill(self, words: np.ndarray) -> None:
        words.fill(-1)

    def accept(self, token_id: int) -> None:
        """Any token will do."""


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


def test_each_backend_compiles_and_the_setting_says_which_is_tried(tokenizer):
    constraint = StructuredOutputParams(json={"type": "boolean"})
    made = Compilers(tokenizer, VOCAB_SIZE, [EOS])
    assert made.choose(constraint) == choose(constraint, "auto", True)[0]
    assert len(made.choose(constraint)) == 2
    for backend in made.choose(constraint):
        grammar = made.submit(backend, constraint).grammar.result(60)
        words = np.zeros(-(-VOCAB_SIZE // 32), dtype=np.int32)
        grammar.start().fill(words)
        assert set(text(tokenizer, "tf")) <= allowed(words)
    made.close()
    for backend in ("llguidance", "xgrammar"):
        one = Compilers(tokenizer, VOCAB_SIZE, [EOS], backend)
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
