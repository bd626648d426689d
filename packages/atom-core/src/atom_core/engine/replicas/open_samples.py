"""`OpenSamples`: which engine has which sample, and what each engine still has to do for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atom_core.engine.replicas.router import Route
from atom_core.messages import EngineOutput, Prompt, Submission
from atom_core.scheduler.tenant import OUTPUT_COST

# Nobody knows how many tokens of output there will be.
EXPECTED_OUTPUT = 256


class _PlacedPrompt:
    """A prompt at an engine: tokens that are to be computed until its first output, and samples that are open."""

    __slots__ = ("num_open", "num_to_compute", "rank", "sample_cost")

    def __init__(self, route: Route, num_samples: int, sample_cost: int) -> None:
        self.rank, self.num_to_compute = route.rank, route.num_to_compute
        self.num_open, self.sample_cost = num_samples, sample_cost


def output_cost(prompt: Prompt, submission: Submission) -> int:
    """What the output of all samples of a prompt counts as, in tokens of prompt; 0 for an embedding."""
    return OUTPUT_COST * min(prompt.max_tokens, EXPECTED_OUTPUT) * submission.sampling_params.n


class OpenSamples:
    """Knows each sample from when it is sent until its last news.

    Attributes:
        loads: tokens by the engine's rank: those of prompts that have no output yet, as far as they are to be
            computed, and for each open sample twice the output that is expected of it.
    """

    def __init__(self, num_engines: int) -> None:
        self.loads = dict.fromkeys(range(num_engines), 0)
        self._placed: dict[str, _PlacedPrompt] = {}

    def __len__(self) -> int:
        return len(self._placed)

    def add(self, submission: Submission, routes: Sequence[Route]) -> None:
        """The prompts of a submission are sent, each by its route."""
        n = submission.sampling_params.n
        for prompt, route in zip(submission.prompts, routes, strict=True):
            cost = output_cost(prompt, submission)
            placed = _PlacedPrompt(route, n, cost // n)
            self.loads[route.rank] += route.num_to_compute + cost
            self._placed |= dict.fromkeys(prompt.sample_ids(n), placed)

    def take(self, news: Iterable[EngineOutput]) -> None:
        """An engine told of its samples."""
        for output in news:
            placed = self._placed.get(output.request_id)
            if placed is not None and output.new_token_ids:
                self._computed(placed)
            if output.finish_reason is not None:
                self._end(output.request_id)

    def by_engine(self, sample_ids: Iterable[str]) -> dict[int, list[str]]:
        """Those of the samples that are open, by the engine that has them."""
        found: dict[int, list[str]] = {}
        for sample_id in sample_ids:
            if (placed := self._placed.get(sample_id)) is not None:
                found.setdefault(placed.rank, []).append(sample_id)
        return found

    def lose(self, rank: int) -> list[str]:
        """An engine is gone: the samples that it had."""
        lost = [sample_id for sample_id, placed in self._placed.items() if placed.rank == rank]
        for sample_id in lost:
            self._end(sample_id)
        return lost

    def _computed(self, placed: _PlacedPrompt) -> None:
        self.loads[placed.rank] -= placed.num_to_compute
        placed.num_to_compute = 0

    def _end(self, sample_id: str) -> None:
        placed = self._placed.pop(sample_id, None)
        if placed is None:
            return
        self.loads[placed.rank] -= placed.sample_cost
        placed.num_open -= 1
        if placed.num_open == 0:
            self._computed(placed)
