"""Finding the best of some candidates by measuring them: what ``python -m atom_kernels tune`` does on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from atom_kernels.tuned.graph_timing import graph_seconds
from atom_kernels.tuned.store import TunedRow

Config = Mapping[str, Any]
# Stands for what would serve without the tuned operator.
RIVAL: Config = {"rival": True}
# The same kernel on other data each.
Calls = Sequence[Callable[[], Any]]


class Subject(Protocol):
    """A problem with its data on the GPU; its *parts* are tuned one by one."""

    def candidates(self, num_rows: int) -> Mapping[str, Sequence[Config]]:
        """What to try for each part."""
        ...

    def calls(self, part: str, config: Config, num_rows: int) -> Calls:
        """A part's kernel under a candidate."""
        ...

    def rival(self, part: str, num_rows: int) -> Calls | None:
        """What serves calls with more rows than the tuned ones in a part's place; None: nothing else does."""
        return None

    def join(self, best: Mapping[str, Config]) -> Config:
        """The operator's configuration from the best of each part."""
        return best


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How an operator is tuned.

    Attributes:
        operator: its name.
        rows: what it is tuned at, rising; each serves calls of up to as many rows, the last one all others.
        problems: problems of real models, by the model's name.
        key: what a problem's configurations are filed under.
        subject: makes a problem's `Subject`.
    """

    operator: str
    rows: tuple[int, ...]
    problems: Callable[[], Mapping[str, Any]]
    key: Callable[[Any], str]
    subject: Callable[[Any], Subject]


@dataclass(frozen=True)
class Trial:
    """One candidate: `microseconds` of a call, or why it cannot run."""

    part: str
    num_rows: int
    config: Config
    microseconds: float | None
    failure: str | None = None


def tune(
    subject: Subject,
    rows: Sequence[int],
    report: Callable[[Trial], None],
    *,
    measure: Callable[[Calls], float] = graph_seconds,
    num_threads: int = 16,
) -> tuple[TunedRow, ...]:
    """Measure every candidate at each number of rows.

    What is best at the last one serves all others. Where there are rivals, these serve what is past the last number of
    rows at which a part is quicker, and nothing is found where none is.

    Raises:
        RuntimeError: no candidate of a part can run.
    """
    found: list[TunedRow] = []
    num_kept, has_rival = 0, False
    with ThreadPoolExecutor(num_threads) as pool:
        for num_rows in rows:
            best: dict[str, Config] = {}
            for part, configs in subject.candidates(num_rows).items():
                trials = list(_try_all(subject, part, configs, num_rows, pool, measure))
                timed = [trial for trial in trials if trial.microseconds is not None]
                if not timed:
                    raise RuntimeError(f"no candidate of {part} runs with {num_rows} rows: {trials[-1].failure}")
                quickest = min(timed, key=lambda trial: trial.microseconds or 0.0)
                best[part] = quickest.config
                rival = subject.rival(part, num_rows)
                if rival is not None:
                    has_rival = True
                    trials.append(Trial(part, num_rows, RIVAL, 1e6 * measure(rival)))
                if rival is None or (quickest.microseconds or 0.0) < (trials[-1].microseconds or 0.0):
                    num_kept = len(found) + 1
                for trial in trials:
                    report(trial)
            found.append(TunedRow(num_rows, subject.join(best)))
    if not has_rival:
        found[-1] = replace(found[-1], max_rows=None)
    return tuple(found[:num_kept])


def _try_all(
    subject: Subject,
    part: str,
    configs: Sequence[Config],
    num_rows: int,
    pool: ThreadPoolExecutor,
    measure: Callable[[Calls], float],
) -> Iterator[Trial]:
    """Kernels are compiled side by side and then timed one after the other."""
    prepared = [(config, subject.calls(part, config, num_rows)) for config in configs]
    # The first one alone: what Triton makes once for a process is not made for many threads.
    failures = [_failure_of(prepared[0][1][0])]
    failures += pool.map(lambda pair: _failure_of(pair[1][0]), prepared[1:])
    for (config, calls), failure in zip(prepared, failures, strict=True):
        yield Trial(part, num_rows, config, None if failure else 1e6 * measure(calls), failure)


def _failure_of(call: Callable[[], Any]) -> str | None:
    try:
        call()
    except Exception as error:  # a candidate may ask for more registers or shared memory than there are, in many ways
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None
