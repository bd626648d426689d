"""Text beside an event loop: the same tokens as ever, in pieces that take turns and end with who wants them."""

from __future__ import annotations

import asyncio
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers, pre_tokenizers

from atom_core.tokenization import TextThreads, Tokenizer, TooManyTokensError
from atom_core.tokenization.text_threads import LONG_THREADS, PIECE_CHARACTERS, SHORT_THREADS
from tokenizer_kinds import make_bert, make_llama, make_unigram, tokenizer_kinds

NO_LIMIT = 10**9


@pytest.fixture(scope="module")
def kinds(tiny_llama: Path) -> dict[str, Tokenizer]:
    """A tokenizer of each kind."""
    return tokenizer_kinds(tiny_llama)


TEXTS = st.text(
    st.one_of(st.sampled_from("abcdefgh  \n\t.'0١ü🙂漢\u0301ᾂ각"), st.characters(exclude_categories=["Cs"]))
)


@settings(max_examples=60, deadline=None)
@given(texts=st.lists(TEXTS, max_size=5), special=st.booleans())
@example(texts=["<|im_start|>a<|im_end|>", "", "a" * 3000 + "\r\n" * 40], special=True)
def test_a_batch_has_the_tokens_of_its_texts_and_their_text(kinds, texts, special):
    for kind, tokenizer in kinds.items():
        one_by_one = [tokenizer.encode(text, special) for text in texts]
        assert tokenizer.encode_batch(texts, special) == one_by_one, kind
        for token_ids in one_by_one:
            assert tokenizer.decode_unlocked(token_ids) == tokenizer.decode(token_ids), kind


@settings(max_examples=150, deadline=None)
@given(text=TEXTS)
@example(text=" " * 500)
@example(text="ᾂ" * 50)
@example(text="\u03b1\u0313\u0300\u0345" * 50)
@example(text="각" * 50)
def test_no_text_is_longer_than_its_tokens_can_stand_for(kinds, text):
    for kind, tokenizer in kinds.items():
        most = tokenizer.most_characters_per_token
        assert most is None or len(text) <= most * len(tokenizer.encode(text, add_special_tokens=False)), kind


def test_the_bound_is_the_longest_token_and_what_is_composed_into_it(kinds):
    assert make_llama().most_characters_per_token == len("<0xFF>")
    longest = max(map(len, kinds["folder"].backend.get_vocab()))
    assert kinds["folder"].most_characters_per_token == kinds["llama3"].most_characters_per_token == longest
    assert kinds["qwen2"].most_characters_per_token == 4 * longest  # it composes characters first


def spaces_beside(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.backend.add_tokens([AddedToken("<mask>", lstrip=True)])
    return tokenizer


def with_part(tokenizer: Tokenizer, **parts) -> Tokenizer:
    for name, part in parts.items():
        setattr(tokenizer.backend, name, part)
    return tokenizer


UNBOUNDED = {
    "words alone": make_bert,
    "runs of unknown characters": make_unigram,
    "unknown characters, fused": lambda: make_llama(byte_fallback=False),
    "unknown characters, left out": lambda: make_llama(byte_fallback=False, unk_token=None),
    "spaces beside a token": lambda: spaces_beside(make_llama()),
    "spaces around": lambda: with_part(make_llama(), normalizer=normalizers.Strip()),
    "runs that shrink": lambda: with_part(make_llama(), normalizer=normalizers.Replace("  ", " ")),
    "spaces between": lambda: with_part(make_llama(), pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
    "cuts": lambda: with_part(make_llama(), pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
}


@pytest.mark.parametrize("make", UNBOUNDED.values(), ids=UNBOUNDED)
def test_nothing_is_claimed_where_a_token_may_stand_for_any_text(make):
    assert make().most_characters_per_token is None


def run(tokenizer: Tokenizer, work):
    """What the coroutine of `work(threads)` gives."""

    async def main():
        threads = TextThreads(tokenizer)
        try:
            return await work(threads)
        finally:
            threads.close()

    return asyncio.run(main())


@settings(max_examples=10, deadline=None)
@given(texts=st.lists(st.builds(lambda text, n: text * n, TEXTS, st.integers(1, 2000)), max_size=4))
def test_threads_give_the_tokens_and_the_text_that_the_tokenizer_gives(kinds, texts):
    for kind in ("qwen2", "llama"):
        tokenizer = kinds[kind]
        encoded = run(tokenizer, lambda threads: threads.encode(texts, most_tokens=NO_LIMIT))
        assert encoded == [tokenizer.encode(text) for text in texts]
        for token_ids in encoded:
            text = run(tokenizer, lambda threads, ids=token_ids: threads.decode(ids, skip_special_tokens=False))
            assert text == tokenizer.decode(token_ids, skip_special_tokens=False)


class CountingTokenizer(Tokenizer):
    """Tells what it was given, and waits where it is told to."""

    def __init__(self) -> None:
        super().__init__(make_llama().backend)
        self.pieces: list[list[str]] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def encode_up_to(self, most_tokens, texts, add_special_tokens=True):
        self.pieces.append(list(texts))
        assert self.may_go_on.wait(20)
        return super().encode_up_to(most_tokens, texts, add_special_tokens)


def test_short_texts_go_together_and_long_ones_alone():
    tokenizer = CountingTokenizer()
    half, long = "a" * (PIECE_CHARACTERS // 2), "b" * (PIECE_CHARACTERS + 1)
    texts = [half, half, half, long, "c", "d"]
    run(tokenizer, lambda threads: threads.encode(texts, most_tokens=NO_LIMIT))
    assert tokenizer.pieces == [[half, half], [half], [long], ["c", "d"]]


def test_the_first_text_with_too_many_tokens_ends_the_work():
    tokenizer = CountingTokenizer()
    texts = ["ab" * PIECE_CHARACTERS] * 9
    texts[1] += "c"
    with pytest.raises(TooManyTokensError) as caught:
        run(tokenizer, lambda threads: threads.encode(texts, most_tokens=PIECE_CHARACTERS))
    assert (caught.value.index, caught.value.num_tokens) == (1, PIECE_CHARACTERS + 1)
    assert len(tokenizer.pieces) == 2


def test_who_leaves_leaves_no_more_than_one_piece_of_work():
    tokenizer = CountingTokenizer()
    tokenizer.may_go_on.clear()

    async def leave(threads: TextThreads):
        asking = asyncio.ensure_future(threads.encode(["a" * PIECE_CHARACTERS] * 15, most_tokens=NO_LIMIT))
        while not tokenizer.pieces:
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        tokenizer.may_go_on.set()
        await threads.run(lambda: time.sleep(0.1), is_long=False)

    run(tokenizer, leave)
    assert len(tokenizer.pieces) == 1


def test_short_texts_do_not_wait_for_long_ones():
    tokenizer = CountingTokenizer()

    async def ask(threads: TextThreads):
        held = threading.Event()
        long = [asyncio.ensure_future(threads.run(partial(held.wait, 20), is_long=True)) for _ in range(9)]
        await asyncio.sleep(0)
        [token_ids] = await threads.encode(["a" * 2000], most_tokens=NO_LIMIT)
        assert not any(work.done() for work in long)
        held.set()
        await asyncio.gather(*long)
        return token_ids

    assert len(run(tokenizer, ask)) == 2001


@pytest.mark.parametrize(("size", "threads"), [(2000, SHORT_THREADS), (PIECE_CHARACTERS + 1, LONG_THREADS)])
def test_many_prompts_of_one_take_turns_with_those_of_another(size, threads):
    tokenizer = CountingTokenizer()
    many = ["a" * PIECE_CHARACTERS if size < PIECE_CHARACTERS else "a" * size] * 40

    async def ask(text_threads: TextThreads):
        greedy = [asyncio.ensure_future(text_threads.encode(many, most_tokens=NO_LIMIT)) for _ in range(threads)]
        await asyncio.sleep(0)
        await text_threads.encode(["b" * size], most_tokens=NO_LIMIT)
        done_before = len(tokenizer.pieces)
        for asking in greedy:
            asking.cancel()
        return done_before

    assert run(tokenizer, ask) <= 3 * threads + 1


@pytest.mark.timing
def test_the_interpreter_is_free_while_a_long_text_is_tokenized(kinds):
    """Another thread gets most of the time that it takes; when the library held the interpreter it got none."""
    tokenizer, text = kinds["qwen2"], "The quick brown fox. " * 20_000

    async def ask(threads: TextThreads):
        started, longest = time.perf_counter(), 0.0
        asking = asyncio.ensure_future(threads.encode([text], most_tokens=1))
        while not asking.done():
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before)
        with pytest.raises(TooManyTokensError):
            await asking
        return longest, time.perf_counter() - started

    longest, total = run(tokenizer, ask)
    assert longest < total / 3
