"""What came of the mistakes: a table by part, and a file of survivors for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tools.mutate.mutation import ROOT, Mutation

FOLDER = ROOT / ".mutations"
_LOT = "    lot "


@dataclass(frozen=True)
class Outcome:
    """Attributes:
    tried, survivors: mistakes, and those among them that no test found.
    num_harmless: mistakes of the whole part that are listed as harmless: not tried, and not counted in the rate.
    """

    part: str
    tried: Sequence[Mutation]
    survivors: Sequence[Mutation]
    num_harmless: int
    seconds: float


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
    tried = sum(len(outcome.tried) for outcome in outcomes)
    found = tried - sum(len(outcome.survivors) for outcome in outcomes)
    harmless = sum(outcome.num_harmless for outcome in outcomes)
    seconds = sum(outcome.seconds for outcome in outcomes)
    return f"{name:<12} {tried:>5} {found:>5} {100 * found / max(1, tried):>5.1f} % {harmless:>8} {seconds:>8.0f}"


def _in_full(outcome: Outcome) -> str:
    lost = Counter(mutation.kind for mutation in outcome.survivors)
    kinds = [
        f"{kind:<16} {count - lost[kind]:>4} of {count:>4} found"
        for kind, count in sorted(Counter(mutation.kind for mutation in outcome.tried).items())
    ]
    survivors = [
        f"{mutation}\n    - {mutation.before}\n    + {mutation.after}\n{_LOT}{mutation.lot}"
        for mutation in outcome.survivors
    ]
    return "\n".join([_row(outcome.part, [outcome]), "", *kinds, "", "Survivors:", *survivors, ""])
