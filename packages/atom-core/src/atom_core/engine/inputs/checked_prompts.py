"""`CheckedPrompts`: prompts whose token ids have been checked, in a thread if there are many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from atom_core.messages import PlacedImage

# Up to so many tokens, the work takes less time than handing it to a thread.
INLINE_TOKENS = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class CheckedPrompts:
    """Prompts whose every token id is one of the model's; `InputProcessor.check_prompts` makes them.

    `num_first_tokens` and `images` are as in `Prompt`, for each of them; empty where no prompt is a pair, or has any.
    """

    token_ids: Sequence[list[int]]
    num_first_tokens: Sequence[int] = ()
    images: Sequence[tuple[PlacedImage, ...]] = ()


async def beside_the_loop(work: Callable[[], T], *, num_tokens: int) -> T:
    """The result of `work`, which is called at once for few tokens, and in a thread for many."""
    return work() if num_tokens <= INLINE_TOKENS else await asyncio.to_thread(work)
