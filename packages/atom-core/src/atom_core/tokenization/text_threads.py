"""`TextThreads`: text to tokens and back beside an event loop, in pieces that take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TypeVar

from atom_core import settings
from atom_core.tokenization.tokenizer import Tokenizer

# Up to here the work takes less time than a way to a thread and back.
INLINE_CHARACTERS, INLINE_TOKENS = 1024, 256
# What is done at once: 10 to 50 milliseconds of work.
PIECE_CHARACTERS, PIECE_TOKENS = 32_768, 16_384
SHORT_THREADS, LONG_THREADS = 2, 2

T = TypeVar("T")


class TooManyTokensError(ValueError):
    """A text has more tokens than were asked for.

    Attributes:
        index: which of the texts it is.
        num_tokens: that it has.
    """

    def __init__(self, index: int, num_tokens: int) -> None:
        super().__init__(f"text {index} has {num_tokens} tokens")
        self.index = index
        self.num_tokens = num_tokens


class TextThreads:
    """Runs what takes long with text, for the coroutines of one event loop.

    Short pieces and long texts have threads of their own, so short texts never wait for long ones. Each call
    has one piece in work at a time, so several calls take turns. A call that is cancelled begins no other piece.

    Args:
        tokenizer: its library lets go of the interpreter while it works on a batch.

    Attributes:
        most_characters_per_token: the longest text that one token stands for; None where nothing limits it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        settings.tokenize_in_calling_thread()
        self.most_characters_per_token = tokenizer.most_characters_per_token
        self._tokenizer = tokenizer
        self._short = ThreadPoolExecutor(SHORT_THREADS, thread_name_prefix="short-text")
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="long-text")

    async def encode(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, most_tokens: int
    ) -> list[list[int]]:
        """Token ids of each text, in order.

        Raises:
            TooManyTokensError: a text has more than `most_tokens`; those after it were not looked at.
        """
        if len(texts) <= 8 and sum(map(len, texts)) <= INLINE_CHARACTERS:
            return _checked(self._tokenizer.encode_up_to(most_tokens, texts, add_special_tokens))
        encoded: list[list[int]] = []
        for piece in _pieces(texts, len):
            work = partial(self._tokenizer.encode_up_to, most_tokens, piece, add_special_tokens)
            found = await self.run(work, is_long=sum(map(len, piece)) > PIECE_CHARACTERS)
            encoded += _checked(found, first=len(encoded))
        return encoded

    async def encode_pairs(self, pairs: Sequence[tuple[str, str]], *, most_tokens: int) -> list[tuple[list[int], int]]:
        """Token ids of each pair, in order, and how many are the first text's (see `Tokenizer.encode_pairs_up_to`).

        Raises:
            TooManyTokensError: as `encode`.
        """

        def size(pair: tuple[str, str]) -> int:
            return len(pair[0]) + len(pair[1])

        encoded: list[tuple[list[int], int]] = []
        for piece in _pieces(pairs, size):
            work = partial(self._tokenizer.encode_pairs_up_to, most_tokens, piece)
            found = await self.run(work, is_long=sum(map(size, piece)) > PIECE_CHARACTERS)
            encoded += _checked(found, first=len(encoded))
        return encoded

    async def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`."""
        if len(token_ids) <= INLINE_TOKENS:
            return self._tokenizer.decode(token_ids, skip_special_tokens)
        work = partial(self._tokenizer.decode_unlocked, token_ids, skip_special_tokens)
        return await self.run(work, is_long=len(token_ids) > PIECE_TOKENS)

    async def run(self, work: Callable[[], T], *, is_long: bool) -> T:
        """What `work` gives, called in a thread. Cancelled before it begins, it never does."""
        return await asyncio.get_running_loop().run_in_executor(self._long if is_long else self._short, work)

    def close(self) -> None:
        """Let the threads end; what has not begun never will."""
        for threads in (self._short, self._long):
            threads.shutdown(wait=False, cancel_futures=True)


def _checked(found: Sequence[T | int], first: int = 0) -> list[T]:
    """What was found of texts that are short enough; `first` is the number of the first of them."""
    encoded: list[T] = []
    for index, one in enumerate(found, start=first):
        if isinstance(one, int):
            raise TooManyTokensError(index, one)
        encoded.append(one)
    return encoded


def _pieces(texts: Sequence[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Texts side by side as far as they are one piece of work; a longer one is a piece by itself."""
    start = 0
    while start < len(texts):
        size = size_of(texts[start])
        end = start + 1
        while end < len(texts) and size + size_of(texts[end]) <= PIECE_CHARACTERS:
            size += size_of(texts[end])
            end += 1
        yield list(islice(texts, start, end))
        start = end
