"""A rank's process without torch: it starts at once, and goes wrong where the name of its model says so.

A name is such as "forward 1 raises", for one rank, or "load all hang".
"""

from __future__ import annotations

import time
from typing import Any

from atom_core.config import ConfigError
from atom_core.errors import ProfilerError
from atom_core.executor.processes.rank_loop import run_rank
from atom_core.messages import ModelOutput, RequestStepOutput, TokenLogprobs
from atom_core.worker.ranks.protocol import Alone
from atom_core.worker.runner import RunnerInfo
from atom_kernels.protocols import NoPeers


class QuietRanks(Alone):
    """Ranks that exchange nothing."""

    peers = NoPeers("they exchange nothing")

    def __init__(self, join):
        self.rank, self.size = join.rank, join.meeting.size

    def is_loss(self, error):
        return isinstance(error, ConnectionError)


class QuietRunner:
    """Samples token 5 for everybody, and asleep as much less as it sleeps deeply.

    "longer" answers hold thousands of log-probabilities, "late" ones take a while.
    """

    def __init__(self, config, ranks):
        self.is_preparing = False
        self._level = 0
        self._config, self._ranks = config, ranks
        self._step: Any = None

    def load(self):
        self._maybe_fail("load")
        config = self._config
        num_blocks = config.cache.num_blocks + (self._ranks.rank if config.model.name == "uneven" else 0)
        return RunnerInfo(num_blocks=num_blocks, max_model_len=config.model.max_model_len)

    def forward(self, step):
        self._maybe_fail("forward")
        self._step = step

    def sample(self, masks):
        self._maybe_fail("sample")
        is_longer = self._config.model.name == "longer"
        logprobs = [TokenLogprobs(5, -1.0, 1, [(6, -2.0)] * 20)] * 20000 if is_longer else None
        requests = [
            RequestStepOutput(request.request_id, [5 - self._level] * request.num_samples, prompt_logprobs=logprobs)
            for request in self._step.scheduled
        ]
        output = ModelOutput(self._step.step_id, requests)
        return lambda: self._late(output)

    def sleep(self, level):
        self._level = level

    def wake_up(self):
        self._level = 0

    def prepare(self):
        if self._config.model.name == "prepares":
            self.is_preparing = True
            time.sleep(1.0)
            self.is_preparing = False
        return False

    def _late(self, output):
        if self._config.model.name == "late":
            time.sleep(0.3)
        return output

    def profile(self, *, start):
        if self._config.model.name == "records nothing":
            raise ProfilerError("there is nothing to record")

    def close(self):
        pass

    def _maybe_fail(self, place):
        where, _, rest = self._config.model.name.partition(" ")
        who, _, what = rest.partition(" ")
        if where != place or who not in ("all", str(self._ranks.rank)):
            return
        if what == "raises":
            raise RuntimeError("the device is on fire")
        if what == "refuses":
            raise ConfigError("max_model_len is too long")
        if what == "hangs":
            time.sleep(1000)
        if what == "is lost":  # by one rank at once, and the other fails a moment later
            if self._ranks.rank == 0:
                raise ConnectionError("nobody is there")
            time.sleep(0.2)
            raise RuntimeError("the device is on fire")


if __name__ == "__main__":
    run_rank(QuietRanks, QuietRunner)
