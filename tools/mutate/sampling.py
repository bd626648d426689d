"""A sample of mistakes: spread over files, the same each time, and hardly another after an edit elsewhere."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence

from tools.mutate.mutation import Mutation


def spread(mutations: Sequence[Mutation], count: int, *, seed: int = 0) -> list[Mutation]:
    """`count` of them: of each file its share, at least one if there are enough, those of the lowest lots.

    Another seed deals the lots anew.
    """
    of_file: dict[str, list[tuple[str, int, Mutation]]] = defaultdict(list)
    for lot, start, mutation in sorted(((_deal(edit.lot, seed), edit.start, edit) for edit in mutations), key=_draw):
        of_file[mutation.file].append((lot, start, mutation))
    # The n-th of N in a file stands at n / N of the way; equal ways go by lot.
    ways = [
        ((place + 0.5) / len(drawn) if place else 0.0, *draw)
        for drawn in of_file.values()
        for place, draw in enumerate(drawn)
    ]
    chosen = [edit for _, _, _, edit in sorted(ways, key=lambda way: way[:3])[:count]]
    return sorted(chosen, key=lambda edit: (edit.file, edit.line, edit.start, edit.kind, edit.after))


def _deal(lot: str, seed: int) -> str:
    return hashlib.sha256(f"{seed} {lot}".encode()).hexdigest() if seed else lot


def _draw(drawn: tuple[str, int, Mutation]) -> tuple[str, int]:
    return drawn[:2]
