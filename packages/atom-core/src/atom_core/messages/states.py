"""`RequestState`: where a sample stands inside the engine, for people who look."""

from __future__ import annotations

from typing import Literal

import msgspec

RequestPhase = Literal["compiling grammar", "waiting", "waiting for kv", "preempted", "prefilling", "decoding"]


class RequestState(msgspec.Struct, frozen=True):
    """Counts of one sample, without any text.

    Attributes:
        caller_id: the id that all samples of its prompt share.
        phase: what it waits for, or does; a preempted request ran before, and waits for blocks or for a mask. One that
            waits for kv has its blocks, and the contents of some are on their way.
        num_computed_tokens: tokens whose keys and values the cache has, those of steps in flight included.
        num_output_tokens: generated so far.
    """

    caller_id: str
    phase: RequestPhase
    num_computed_tokens: int = 0
    num_output_tokens: int = 0
