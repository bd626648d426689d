"""A sample of mistakes: spread over files, the same each time, and hardly another after an edit elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from tools.mutate.mutation import Mutation


def spread(mutations: Sequence[Mutation], count: int) -> list[Mutation]:
    """`count` of them: of each file its share, at least one if there are enough, those of the lowest lots."""
    of_file: dict[str, list[Mutation]] = defaultdict(list)
    for mutation in sorted(mutations, key=lambda edit: (edit.lot, edit.start)):
        of_file[mutation.file].append(mutation)
    # The n-th of N in a file stands at n / N of the way; equal ways go by lot.
    ways = [
        ((place + 0.5) / len(edits) if place else 0.0, edit.lot, edit.start, edit)
        for edits in of_file.values()
        for place, edit in enumerate(edits)
    ]
    chosen = [edit for _, _, _, edit in sorted(ways, key=lambda way: way[:3])[:count]]
    return sorted(chosen, key=lambda edit: (edit.file, edit.line, edit.start, edit.kind, edit.after))
