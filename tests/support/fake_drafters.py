"""Drafters for tests: of anything, and of what the fake worker is going to sample."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from atom_core.kv_cache import BlockHasher, KVCacheConfig
from atom_core.messages import EngineRequest, SamplingParams
from atom_core.scheduler import Scheduler, SchedulerConfig
from atom_core.speculation import NO_DRAFT, Draft, Drafter, EachByItself, Speculation, SpeculationConfig
from fake_draft_cache import FakeDraftCache, guess_at_random, guess_by_knowing
from fake_worker import VOCAB_SIZE, FakeEngine, pages, tokens_alone


class RandomDrafter:
    """Any ids, any number of them: what is right is so by chance."""

    def __init__(self, vocab_size: int = VOCAB_SIZE) -> None:
        self._vocab_size, self._chooser = vocab_size, random.Random(5)

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Draft:
        return Draft([self._chooser.randrange(self._vocab_size) for _ in range(self._chooser.randint(0, num_tokens))])


class KnowingDrafter:
    """What the fake worker samples for the first sample of a prompt, now and then with a mistake in it."""

    def __init__(self, windows: Sequence[int | None] = (None,), mistakes: float = 0.1) -> None:
        self._windows, self._mistakes, self._chooser = windows, mistakes, random.Random(5)

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Draft:
        request = EngineRequest("", list(token_ids), SamplingParams(max_tokens=num_tokens))
        coming = tokens_alone(request, self._windows)
        return Draft([(token + (self._chooser.random() < self._mistakes)) % VOCAB_SIZE for token in coming])


def make_drafting_engine(
    kind: str = "knowing",
    *,
    num_tokens: int = 3,
    ahead: int = 1,
    windows: Sequence[int | None] = (None,),
    mistakes: float = 0.1,
    adaptive: bool = False,
    clock: Callable[[], float] = time.monotonic,
    hasher: BlockHasher | None = None,
    **overrides: Any,
) -> FakeEngine:
    """A scheduler with drafts of a kind (see `speculation_of`) over a fake worker.

    Args:
        overrides: fields of `KVCacheConfig` and of `SchedulerConfig`.
    """
    sizes = {"num_blocks": 64, "block_size": 4, "names_cover_next": kind.startswith("model")}
    sizes |= {name: overrides.pop(name) for name in KVCacheConfig.__struct_fields__ if name in overrides}
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 128, "async_scheduling": ahead > 0}
    cache = KVCacheConfig(**sizes, groups=pages(*windows))
    speculation = speculation_of(kind, num_tokens, windows, adaptive=adaptive)
    config = SchedulerConfig(**limits | overrides)
    scheduler = Scheduler(config, cache, clock=clock, hasher=hasher, speculation=speculation)
    return let_draft(FakeEngine(scheduler, cache.num_blocks, cache.block_size, ahead, windows), kind, mistakes)


def speculation_of(
    kind: str, num_tokens: int, windows: Sequence[int | None] = (None,), *, adaptive: bool = False
) -> Speculation | None:
    """The speculation of a fake engine: "none", "random" or "knowing"; where "model" is before it, see `let_draft`."""
    if kind == "none":
        return None
    if kind.startswith("model"):
        return Speculation(SpeculationConfig(method="mtp", num_tokens=num_tokens, adaptive=adaptive))
    return always_drafting(RandomDrafter if kind == "random" else lambda: KnowingDrafter(windows), num_tokens)


def let_draft(engine: FakeEngine, kind: str, mistakes: float = 0.1) -> FakeEngine:
    """Give the fake worker the drafts of "model random" or "model knowing"; other kinds have none of it."""
    if kind.startswith("model"):
        chooser, windows = random.Random(5), engine.worker.windows
        is_random = kind == "model random"
        guess = guess_at_random(chooser, VOCAB_SIZE) if is_random else guess_by_knowing(chooser, windows, mistakes)
        engine.worker.drafts = FakeDraftCache(engine.worker, guess)
    return engine


def always_drafting(make_drafter: Callable[[], Drafter], num_tokens: int) -> Speculation:
    """Drafts wherever there are any, whether or not they save time."""
    return Speculation(SpeculationConfig(num_tokens=num_tokens, adaptive=False), EachByItself(make_drafter))


class RecordedDrafter:
    """Goes on as one of `records` (prompt and output of runs without drafts) did, now and then with a mistake."""

    def __init__(self, records: Sequence[Sequence[int]], vocab_size: int, mistakes: float = 0.15) -> None:
        self._records, self._vocab_size, self._mistakes = records, vocab_size, mistakes
        self._chooser = random.Random(5)

    def propose(self, token_ids: Sequence[int], num_tokens: int) -> Draft:
        known = list(token_ids)
        for record in self._records:
            if list(record[: len(known)]) == known:
                coming = record[len(known) : len(known) + num_tokens]
                return Draft([self._perhaps_other(token_id) for token_id in coming])
        return NO_DRAFT

    def _perhaps_other(self, token_id: int) -> int:
        is_mistake = self._chooser.random() < self._mistakes
        return self._chooser.randrange(self._vocab_size) if is_mistake else token_id
