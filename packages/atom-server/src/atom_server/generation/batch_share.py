"""`BatchShare`: how much of the engine and of its queue lines of batches may have at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_core import EngineInfo, InvalidRequestError

if TYPE_CHECKING:
    from atom_server.generation.generation import Generation


@dataclass(frozen=True)
class BatchShare:
    """Nobody waits for batches, so all their lines together have fewer than half of the places.

    Attributes:
        num_samples: the most samples of all lines that are asked at once.
        num_tokens: the most tokens of their prompts.
    """

    num_samples: int
    num_tokens: int

    @classmethod
    def of(cls, info: EngineInfo, max_num_queued_tokens: int) -> BatchShare:
        """The share of an engine whose queue takes so many tokens of prompts."""
        places = info.max_num_seqs * info.data_parallel_size
        return cls(max((places - 1) // 2, 1), max(max_num_queued_tokens // 2, 1))

    def check(self, active: Iterable[Generation], num_samples: int, num_tokens: int = 0) -> None:
        """Whether a line may be asked now.

        Raises:
            InvalidRequestError: with code "queue_full" later; other codes mean that it could never be.
        """
        lines = [generation for generation in active if generation.is_of_batch]
        for what, asked, most, taken in (
            ("samples", num_samples, self.num_samples, sum(line.num_choices for line in lines)),
            ("prompt tokens", num_tokens, self.num_tokens, sum(line.num_prompt_tokens for line in lines)),
        ):
            if asked > most:
                message = f"this line asks for {asked} {what} at once; lines of batches may have {most} together"
                raise InvalidRequestError(f"{message}: make several lines of it", "prompt")
            if taken + asked > most:
                message = f"lines of batches have {taken} {what} at once, of {most} that they may have"
                raise InvalidRequestError(f"{message}: try again later", code="queue_full")
