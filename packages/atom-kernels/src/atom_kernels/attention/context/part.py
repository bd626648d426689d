"""`PartOfStep`: a step as the kernels of whole caches see it, where a rank keeps every N-th position of a request.

Queries that stand N apart see one key more each, in the rank's own part. So a request becomes up
to N causal ones over the same blocks, and a kernel of causal attention serves as it is.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import torch

from atom_kernels.attention.context.problem import PartialMlaProblem
from atom_kernels.protocols import BatchGeometry


@dataclass(frozen=True)
class PartOfStep:
    """A step over one rank's part.

    Attributes:
        geometry: the rank's own tokens of each request, in blocks of its own.
        rows: int64, where the queries of `geometry` stand among those of the step; None where all stand as they did. A
            query that sees nothing of this rank's is left out.
    """

    geometry: BatchGeometry
    rows: torch.Tensor | None

    def of_rows(self, x_T: torch.Tensor) -> torch.Tensor:
        """The step's tensor in the order of `geometry`."""
        return x_T[: self.geometry.num_tokens] if self.rows is None else x_T[self.rows]

    def place(self, found: torch.Tensor, into_T: torch.Tensor) -> None:
        """What was found in the order of `geometry` goes where it stands in the step."""
        if self.rows is None:
            into_T[: self.geometry.num_tokens] = found
        else:
            into_T[self.rows] = found


def part_of_step(problem: PartialMlaProblem, geometry: BatchGeometry) -> PartOfStep:
    """The part of the problem's rank."""
    starts, lengths = geometry.query_start_loc.tolist(), geometry.seq_lens.tolist()
    rows: list[int] = []
    firsts, kept, requests = [0], [], []
    for request in range(geometry.num_reqs):
        first, last = starts[request], starts[request + 1]
        for run in _runs(problem, first, last, lengths[request] - (last - first)):
            rows += run
            firsts.append(len(rows))
            kept.append(num_kept(problem, lengths[request] - last + run[-1] + 1))
            requests.append(request)
    device, int32 = geometry.seq_lens.device, torch.int32
    lens = [end - begin for begin, end in itertools.pairwise(firsts)]
    num_decodes = next((index for index, length in enumerate(lens) if length > 1), len(lens))
    is_in_place = rows == list(range(len(rows)))
    own = replace(
        geometry,
        query_start_loc=torch.tensor(firsts, dtype=int32, device=device),
        seq_lens=torch.tensor(kept, dtype=int32, device=device),
        block_table=geometry.block_table[torch.tensor(requests, dtype=torch.int64, device=device)],
        slot_mapping=_own_slots(problem, geometry.slot_mapping[: geometry.num_tokens]),
        num_reqs=len(requests),
        num_tokens=len(rows),
        num_decodes=num_decodes,
        max_query_len=max(lens, default=0),
        max_seq_len=max(kept, default=0),
        max_decode_len=1,
        prompts_are_new=False,
        num_prompt_keys=sum(kept[num_decodes:]),
    )
    return PartOfStep(own, None if is_in_place else torch.tensor(rows, dtype=torch.int64, device=device))


def num_kept(problem: PartialMlaProblem, num_tokens: int) -> int:
    """How many of a request's first tokens the rank keeps."""
    return (num_tokens + problem.num_ranks - 1 - problem.rank) // problem.num_ranks


def _runs(problem: PartialMlaProblem, first: int, last: int, position: int) -> list[range]:
    """Rows ``first:last``, of which the first stands at `position`, by how they lie to the rank's positions."""
    runs = []
    for row in range(first, min(first + problem.num_ranks, last)):
        if not num_kept(problem, position + row - first + 1):
            row += problem.num_ranks
        if row < last:
            runs.append(range(row, last, problem.num_ranks))
    return runs


def _own_slots(problem: PartialMlaProblem, slot_mapping: torch.Tensor) -> torch.Tensor:
    """Where the rank writes each token; -1 where another one does."""
    size, num_ranks = problem.block_size, problem.num_ranks
    blocks, offsets = slot_mapping // size, slot_mapping % size
    # No slot, which is -1, stays so: it is the last one of the block before the first.
    return torch.where(offsets % num_ranks == problem.rank, blocks * (size // num_ranks) + offsets // num_ranks, -1)
