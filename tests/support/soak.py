"""A long random run of an engine: requests that begin alike, arrive over time, and are aborted now and then."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

from atom_core import LLMEngine, SamplingParams
from atom_core.scheduler import Scheduler
from atom_core.scheduler.request import RequestStatus
from block_accounting import check_blocks

CHAT_PROMPT, FEW_TOKENS, MANY_TOKENS = 64, 24, 320


class Wanted(NamedTuple):
    """A request: its prompt, and how many tokens it is to get."""

    prompt: list[int]
    num_tokens: int


@dataclass
class Soak:
    """Random requests to `engine`, whose blocks are counted after every step.

    Two of five are chats: a short prompt, which may get so many tokens that running requests outgrow the cache. The
    lengths of the other prompts are log-uniform from 1 to `longest`, and half of them begin like others. One step in
    fifty aborts a request.

    Attributes:
        wanted, finished: what was asked for, and what came, by the ids of requests.
        aborted, preempted: ids; a preempted request computes the tokens that it had once more, as a prompt.
    """

    engine: LLMEngine
    longest: int
    seed: int = 17
    wanted: dict[str, Wanted] = field(default_factory=dict)
    finished: dict[str, list[int]] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    preempted: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._live: list[str] = []
        self._stems = [self._tokens(round(share * self.longest)) for share in (0.01, 0.08, 0.4)]

    def run(self, num_requests: int) -> None:
        """Until so many have finished or were aborted."""
        while len(self.wanted) < num_requests or not self.engine.is_finished():
            for _ in range(self._draw.randrange(4)):
                if len(self.wanted) < num_requests:
                    self._add()
            self._step()
        self.engine.step()  # an aborted request may have left a step on its way, which holds its blocks
        assert set(self.finished) | self.aborted == set(self.wanted)
        stats = self.engine.stats
        assert (stats.num_free_blocks, stats.num_running, stats.num_waiting) == (stats.num_blocks, 0, 0)

    def sample(self, count: int, *, with_preempted: bool) -> dict[str, Wanted]:
        """Some of the requests that finished: a random few, and all that were preempted or none of them."""
        preempted = sorted(name for name in self.finished if name in self.preempted)
        others = sorted(name for name in self.finished if name not in self.preempted)
        names = random.Random(3).sample(others, count) + (preempted if with_preempted else [])
        return {name: self.wanted[name] for name in names}

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(3, 384) for _ in range(count)]

    def _add(self) -> None:
        is_chat = self._draw.random() < 0.4
        length = round((CHAT_PROMPT if is_chat else self.longest) ** self._draw.random())
        stem = self._draw.choice(self._stems) if not is_chat and self._draw.random() < 0.5 else []
        num_tokens = self._draw.randrange(1, MANY_TOKENS if is_chat else FEW_TOKENS)
        wanted = Wanted((stem + self._tokens(length))[: self.longest], num_tokens)
        [name] = self.engine.add_request([wanted.prompt], greedy(wanted.num_tokens))
        self.wanted[name] = wanted
        self._live.append(name)

    def _step(self) -> None:
        for output in self.engine.step():
            name = output["request_id"]
            assert output["error"] is None
            assert len(output["token_ids"]) == self.wanted[name].num_tokens
            self.finished[name] = output["token_ids"]
            self._live.remove(name)
        scheduler = scheduler_of(self.engine)
        check_blocks(scheduler)
        self.preempted |= {
            name
            for name, request in scheduler._book.by_id.items()
            if request.has_run and request.status is RequestStatus.WAITING
        }
        if self._live and self._draw.random() < 0.02:
            victim = self._live.pop(self._draw.randrange(len(self._live)))
            self.engine.abort([victim])
            self.aborted.add(victim)


def scheduler_of(engine: LLMEngine) -> Scheduler:
    core = engine._core
    assert core is not None
    return core._scheduler


def greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
