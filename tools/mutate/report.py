"""What came of the mistakes: a table by part, and a file of survivors for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.mutate.mutation import ROOT, Mutation
from tools.mutate.running import Trial

FOLDER = ROOT / ".mutations"
_LOT = "    lot "


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    named_tests: names of the test files that the part's table has.
    num_harmless: mistakes of the whole part that are listed as harmless: not tried, and not counted in the rate.
    """

    part: str
    trials: Sequence[Trial]
    named_tests: Collection[str]
    num_harmless: int

    @property
    def survivors(self) -> list[Mutation]:
        """Those that no test found."""
        return [trial.mutation for trial in self.trials if trial.found_by is None]


def report(outcomes: Sequence[Outcome]) -> int:
    """Prints the table, writes the files, and gives the exit status."""
    FOLDER.mkdir(exist_ok=True)
    for outcome in outcomes:
        (FOLDER / f"{outcome.part}.txt").write_text(_in_full(outcome))
    print(f"{'part':<12} tried found    rate harmless  seconds")
    for outcome in outcomes:
        print(_row(outcome.part, [outcome]))
    if len(outcomes) > 1:
        print(_row("all", outcomes))
    return 1 if any(outcome.survivors for outcome in outcomes) else 0


def survivors_of_last_run(part: str) -> frozenset[str]:
    """Their lots."""
    path = FOLDER / f"{part}.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return frozenset(line.removeprefix(_LOT) for line in lines if line.startswith(_LOT))


def _row(name: str, outcomes: Sequence[Outcome]) -> str:
    tried = sum(len(outcome.trials) for outcome in outcomes)
    found = tried - sum(len(outcome.survivors) for outcome in outcomes)
    harmless = sum(outcome.num_harmless for outcome in outcomes)
    seconds = sum(trial.seconds for outcome in outcomes for trial in outcome.trials)
    return f"{name:<12} {tried:>5} {found:>5} {100 * found / max(1, tried):>5.1f} % {harmless:>8} {seconds:>8.0f}"


def _in_full(outcome: Outcome) -> str:
    lost = Counter(mutation.kind for mutation in outcome.survivors)
    kinds = [
        f"{kind:<16} {count - lost[kind]:>4} of {count:>4} found"
        for kind, count in sorted(Counter(trial.mutation.kind for trial in outcome.trials).items())
    ]
    survivors = [
        f"{mutation}\n    - {mutation.before}\n    + {mutation.after}\n{_LOT}{mutation.lot}"
        for mutation in outcome.survivors
    ]
    found = [trial for trial in outcome.trials if trial.found_by is not None]
    others = [trial for trial in found if Path(str(trial.found_by).split("::")[0]).name not in outcome.named_tests]
    return "\n".join(
        [
            *(_row(outcome.part, [outcome]), "", *kinds, "", "Survivors:", *survivors, ""),
            *("Found by test files that the part does not name:", *map(_found_by, others), ""),
            *("Found by:", *map(_found_by, found), ""),
        ]
    )


def _found_by(trial: Trial) -> str:
    return f"{trial.found_by} | {trial.seconds:.0f} s | {trial.mutation}"
