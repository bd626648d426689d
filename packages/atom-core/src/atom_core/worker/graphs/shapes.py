"""`GraphShapes`: which batches are captured, and to which of them a step is padded. Torch-free."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from atom_core.speculation.config import DRAFTING_REQS
from atom_core.worker.steps.batch import StepRows
from atom_kernels.powers_of_two import is_power_of_two

# Requests of a captured batch with prompts in it.
PROMPT_REQS = 16
# An H100 computes this many tokens times weights in 25 ms. Launching 36 layers takes a host 14 to 40 ms.
LAUNCH_BOUND = 1e13
# Above this, not every number of drafts is captured.
MOST_NUMBERS = 4
# Beyond so many tokens, a step is captured in pieces only: the host has time enough to call attention.
MOST_WHOLE = 2048


@dataclass(frozen=True)
class GraphShape:
    """A batch of exactly so many requests and tokens.

    Attributes:
        tokens_each: tokens of each request's decode: one, and the drafts that are verified.
    """

    num_reqs: int
    num_tokens: int
    tokens_each: int = 1

    @property
    def is_decode(self) -> bool:
        return self.num_reqs * self.tokens_each == self.num_tokens

    @property
    def num_samples(self) -> int:
        """Tokens that it samples: all decodes after all of theirs, others after the last."""
        return self.num_tokens if self.is_decode else self.num_reqs


class GraphShapes:
    """The shapes that an engine captures; none without arguments.

    Args:
        decode_sizes: requests of decodes.
        prompt_sizes: tokens of batches with prompts.
        prompt_reqs: requests of these.
        draft_shapes: decodes with drafts.

    Attributes:
        all: all shapes, those of most tokens first.
    """

    def __init__(
        self,
        decode_sizes: Sequence[int] = (),
        prompt_sizes: Sequence[int] = (),
        prompt_reqs: int = PROMPT_REQS,
        draft_shapes: Sequence[GraphShape] = (),
    ) -> None:
        self._draft_shapes = sorted(draft_shapes, key=lambda shape: shape.num_reqs)
        self._decode_sizes, self._prompt_reqs = sorted(decode_sizes), prompt_reqs
        self._prompt_sizes = sorted(size for size in prompt_sizes if size > prompt_reqs)
        shapes = [*draft_shapes, *(GraphShape(size, size) for size in self._decode_sizes)]
        shapes += [GraphShape(prompt_reqs, size) for size in self._prompt_sizes]
        self.all = sorted(shapes, key=lambda shape: shape.num_tokens, reverse=True)

    @property
    def decodes(self) -> GraphShapes:
        """Those without prompts."""
        return GraphShapes(self._decode_sizes, draft_shapes=self._draft_shapes)

    def of_step(self, rows: StepRows) -> GraphShape | None:
        """The shape that a step is padded to; None where it is larger than all.

        Where requests have unequal drafts, tokens before theirs are computed again, so they must have so many.
        """
        num_reqs, num_tokens = rows.num_reqs, rows.num_tokens
        if rows.has_guesses:
            if (rows.num_samples != rows.lengths).any():
                return None
            each, most = int(rows.lengths.max()), int((rows.starts - rows.num_unsettled + rows.lengths).min())
            fitting = (found for found in self._draft_shapes if each <= found.tokens_each <= most)
            return min(
                (found for found in fitting if found.num_reqs >= num_reqs),
                key=lambda shape: shape.num_tokens,
                default=None,
            )
        if num_tokens == num_reqs and len(rows.sampling) == num_reqs:
            size = _at_least(self._decode_sizes, num_reqs)
            return None if size is None else GraphShape(size, size)
        size = _at_least(self._prompt_sizes, num_tokens)
        # Tokens that are left over go to a request of padding.
        if size is None or num_reqs + (num_tokens < size) > self._prompt_reqs:
            return None
        return GraphShape(self._prompt_reqs, size)


def prompt_sizes(weights_per_token: int, max_num_tokens: int) -> tuple[int, ...]:
    """Tokens of the batches with prompts that are worth capturing, where a token is multiplied by so many weights.

    What takes long to compute is padded little.
    """
    sizes = [*range(64, 256, 64), *range(256, 1024, 128), *range(1024, 4096, 256), *range(4096, 8193, 512)]
    return tuple(size for size in sizes if size <= max_num_tokens and size * weights_per_token <= LAUNCH_BOUND)


def draft_shapes(decode_sizes: Sequence[int], num_drafts: int, max_num_tokens: int) -> tuple[GraphShape, ...]:
    """Decodes with up to `num_drafts` drafts that are worth capturing, of at most `max_num_tokens`.

    Where they are many, requests are padded to powers of two: few batches are that large and have drafts.
    """
    numbers = range(1, num_drafts + 1) if num_drafts <= MOST_NUMBERS else sorted({1, 2, MOST_NUMBERS, num_drafts})
    return tuple(
        GraphShape(size, size * (1 + number), 1 + number)
        for size in decode_sizes
        for number in numbers
        if (size <= DRAFTING_REQS or is_power_of_two(size)) and size * (1 + number) <= max_num_tokens
    )


def _at_least(sizes: Sequence[int], number: int) -> int | None:
    place = bisect.bisect_left(sizes, number)
    return sizes[place] if place < len(sizes) else None
