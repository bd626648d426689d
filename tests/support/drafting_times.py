"""`TimedDecodes`: decodes on a device and a host that take the times of a table; drafts are right by chance."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import EngineRequest, ModelOutput, RequestStepOutput, SamplingParams, SchedulerOutput
from atom_core.scheduler import Scheduler
from atom_core.scheduler.config import SchedulerConfig
from atom_core.speculation import Speculation, SpeculationConfig

Times = Callable[[int, int, int], float]
"""``(requests, tokens, drafts made for each) -> seconds``."""


class Speed(NamedTuple):
    """What came of some time.

    Attributes:
        rate: tokens a second.
        drafts: tokens of drafts for each request in a step.
    """

    rate: float
    drafts: float


class TimedDecodes:
    """Requests that decode for ever; a draft is right with the probability `chance`, whatever comes before it.

    Steps run ahead as in `EngineCore`: the host submits a step before it waits for the one before.

    Args:
        device: what a step takes there.
        host: what a step takes on the host, before the device can begin with it.
        num_drafts: at most, of a request in a step.
        is_adaptive: else there are always as many.
    """

    def __init__(
        self, device: Times, host: Times, *, chance: float, num_drafts: int, is_adaptive: bool = True, seed: int = 0
    ) -> None:
        self.now, self.chance = 0.0, chance
        self.device, self.host = device, host
        self._chooser, self._free_at = random.Random(seed), 0.0
        method = SpeculationConfig(method="eagle3", num_tokens=num_drafts, adaptive=is_adaptive)
        speculation = Speculation(method) if num_drafts else None
        config = SchedulerConfig(
            max_num_seqs=128, max_num_batched_tokens=2048, max_model_len=1 << 20, async_scheduling=True
        )
        cache = KVCacheConfig(num_blocks=1 << 14, block_size=1024, names_cover_next=True, enable_prefix_caching=False)
        self.scheduler = Scheduler(config, cache, clock=lambda: self.now, speculation=speculation)
        self._in_flight: deque[tuple[SchedulerOutput, float]] = deque()
        self._names: list[str] = []
        self._num_added = 0

    def let_run(self, num_requests: int) -> None:
        """So many requests run from now on, all of them past their prompts."""
        self.scheduler.abort(self._names[num_requests:])
        del self._names[num_requests:]
        while len(self._names) < num_requests:
            self._names.append(f"r{self._num_added}")
            params = SamplingParams(max_tokens=1 << 19, ignore_eos=True)
            self.scheduler.add_request(EngineRequest(self._names[-1], [0, 0, 0], params))
            self._num_added += 1
        for _ in range(4):
            self._step()

    def speed(self, num_steps: int) -> Speed:
        """How fast the next steps are, and how many drafts they have."""
        start, tokens, drafts, rows = self.now, 0, 0, 0
        for _ in range(num_steps):
            step, output = self._step()
            tokens += sum(len(result.token_ids) for result in output.requests)
            drafts += sum(max(entry.num_samples - 1, 0) for entry in step.scheduled)
            rows += len(step.scheduled)
        return Speed(tokens / (self.now - start), drafts / rows)

    def _step(self) -> tuple[SchedulerOutput, ModelOutput]:
        """Report a step, and submit one or two more."""
        while len(self._in_flight) < 2 and (step := self.scheduler.schedule()) is not None:
            sizes = (len(step.scheduled), step.num_tokens, max(entry.num_next_drafts for entry in step.scheduled))
            self.now += self.host(*sizes)
            self._free_at = max(self.now, self._free_at) + self.device(*sizes)
            self._in_flight.append((step, self._free_at))
        step, end = self._in_flight.popleft()
        self.now = max(self.now, end)
        output = ModelOutput(step.step_id, [self._result(entry) for entry in step.scheduled])
        self.scheduler.update(step, output)
        return step, output

    def _result(self, entry) -> RequestStepOutput:
        """Right drafts are the token 0, and so are all drafts."""
        token_ids = [self._draw() for _ in range(entry.num_samples)]
        wrong = next((place for place, token_id in enumerate(token_ids) if token_id), len(token_ids))
        return RequestStepOutput(
            entry.request_id, token_ids[: wrong + 1], next_draft_token_ids=[0] * entry.num_next_drafts
        )

    def _draw(self) -> int:
        return int(self._chooser.random() >= self.chance)
