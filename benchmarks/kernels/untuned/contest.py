"""What the rule chooses against the best that the tuner finds: one case."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atom_kernels.tuned.graph_timing import graph_seconds
from atom_kernels.tuned.tuner import RIVAL, Calls, Config, Subject, Trial, tune
from benchmarks.kernels.untuned.cases import UntunedCase

# The quickest of many, timed once, owes a part of that to luck: so many are timed again beside the chosen one, in
# turns, and count by their medians.
_FINALISTS, _TURNS = 3, 3

Measure = Callable[[Calls], float]


class _WithChosen(Subject):
    """A tuner's subject that tries what the rule chooses, too."""

    def __init__(self, subject: Subject, chosen: Mapping[str, Config]) -> None:
        self._subject, self._chosen = subject, chosen

    def candidates(self, num_rows: int) -> Mapping[str, Sequence[Config]]:
        candidates = {part: list(configs) for part, configs in self._subject.candidates(num_rows).items()}
        for part, chosen in self._chosen.items():
            if chosen != RIVAL and chosen not in candidates[part]:
                candidates[part].append(chosen)
        return candidates

    def calls(self, part: str, config: Config, num_rows: int) -> Calls:
        return self._subject.calls(part, config, num_rows)

    def rival(self, part: str, num_rows: int) -> Calls | None:
        return self._subject.rival(part, num_rows)


def contest(case: UntunedCase, measure: Measure = graph_seconds) -> list[dict[str, Any]]:
    """One result for each part of the case, as JSON values.

    Raises:
        RuntimeError: what the rule chooses does not run, or no candidate does.
    """
    subject, chosen = case.untuned.tuning.subject(case.untuned.problem), case.chosen()
    trials: list[Trial] = []
    tune(_WithChosen(subject, chosen), (case.num_rows,), trials.append, measure=measure)
    results = []
    for part, config in chosen.items():
        mine = [trial for trial in trials if trial.part == part]
        times = _final(subject, mine, config, case.num_rows, measure)
        results.append(_result(case, part, config, times) | {"tried": len(mine)})
    return results


def _final(
    subject: Subject, trials: Sequence[Trial], chosen: Config, num_rows: int, measure: Measure
) -> list[tuple[float, Config]]:
    """Microseconds of the chosen configuration, which comes first, and of the quickest others."""
    failure = next((trial.failure for trial in trials if trial.config == chosen), "it was not tried")
    if failure:
        raise RuntimeError(f"what the rule chooses does not run: {failure}")
    timed = [trial for trial in trials if trial.microseconds is not None and trial.config != chosen]
    quickest = sorted(timed, key=lambda trial: trial.microseconds or 0.0)[:_FINALISTS]
    configs = [chosen, *(trial.config for trial in quickest)]
    calls = [_calls(subject, trials[0].part, config, num_rows) for config in configs]
    turns = [[1e6 * measure(one) for one in calls] for _ in range(_TURNS)]
    return list(zip(map(statistics.median, zip(*turns, strict=True)), configs, strict=True))


def _calls(subject: Subject, part: str, config: Config, num_rows: int) -> Calls:
    calls = subject.rival(part, num_rows) if config == RIVAL else subject.calls(part, config, num_rows)
    if calls is None:
        raise RuntimeError(f"nothing but the tuned kernel serves {part}")
    return calls


def _result(case: UntunedCase, part: str, chosen: Config, times: Sequence[tuple[float, Config]]) -> dict[str, Any]:
    us, (best_us, best) = times[0][0], min(times, key=lambda pair: pair[0])
    return {
        "operator": case.operator,
        "model": case.model,
        "case": case.label,
        "part": part,
        "rows": case.num_rows,
        "us": round(us, 2),
        "best_us": round(best_us, 2),
        "slower": round(us / best_us - 1, 4),
        "chosen": dict(chosen),
        "best": dict(best),
    }
