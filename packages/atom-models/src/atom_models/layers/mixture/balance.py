"""Places experts by how many rows chose them, so that ranks have about as much to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from atom_models.layers.mixture.placement import ExpertPlacement, PlaceExperts, place_contiguously


def balanced(loads: Sequence[float], num_ranks: int, *, num_redundant: int = 0) -> ExpertPlacement:
    """A placement in which the rank with most to do has little more than the others.

    Greedy, as DeepSeek's balancer (https://github.com/deepseek-ai/EPLB): each further copy goes to the expert that has
    most rows a copy, and the copies, the heaviest first, each to the rank with least rows that has room.

    Args:
        loads: how many rows chose each expert.
        num_ranks: ranks hold equal numbers of copies, or the first of them one more.
        num_redundant: copies beside the first of each expert.

    Raises:
        ValueError: a rank would hold none, or an expert twice.
    """
    num_slots, num_experts = len(loads) + num_redundant, len(loads)
    if not num_ranks <= num_slots <= num_ranks * num_experts:
        raise ValueError(
            f"{num_experts} experts and {num_redundant} further copies cannot be placed on {num_ranks} ranks: each "
            "holds at least one of them, and none twice"
        )
    each, left = divmod(num_slots, num_ranks)
    ranks = [_Rank(each + (rank < left)) for rank in range(num_ranks)]
    copies = _copies(loads, num_slots, num_ranks)
    rows = [load / count for load, count in zip(loads, copies, strict=True)]
    for expert in sorted(range(num_experts), key=lambda one: -rows[one]):
        for _ in range(copies[expert]):
            rank = _rank_for(expert, ranks, rows)
            rank.held.append(expert)
            rank.rows += rows[expert]
    return ExpertPlacement(tuple(tuple(sorted(rank.held)) for rank in ranks))


def loads_of_ranks(placement: ExpertPlacement, loads: Sequence[float]) -> list[float]:
    """How many rows each rank computes, where copies take turns."""
    every = [expert for of_rank in placement.slots for expert in of_rank]
    return [sum(loads[expert] / every.count(expert) for expert in of_rank) for of_rank in placement.slots]


def place_with_copies(num_redundant: int) -> PlaceExperts:
    """Places experts with so many further copies, on ranks that hold as many each; 0 is `place_contiguously`."""

    def place(name: str, num_experts: int, num_ranks: int) -> ExpertPlacement:
        place_contiguously(name, num_experts, num_ranks)
        if (num_experts + num_redundant) % num_ranks or num_redundant > num_experts * (num_ranks - 1):
            raise ValueError(
                f"{name}: {num_experts} experts and {num_redundant} further copies (num_redundant_experts) cannot be "
                f"placed on {num_ranks} ranks: each holds as many as the others, and none twice"
            )
        return balanced([1.0] * num_experts, num_ranks, num_redundant=num_redundant)

    return place if num_redundant else place_contiguously


def _copies(loads: Sequence[float], num_slots: int, num_ranks: int) -> list[int]:
    copies = [1] * len(loads)
    for _ in range(num_slots - len(loads)):
        may_grow = [expert for expert, count in enumerate(copies) if count < num_ranks]
        copies[max(may_grow, key=lambda expert: loads[expert] / copies[expert])] += 1
    return copies


@dataclass
class _Rank:
    """A rank that is being filled."""

    size: int
    held: list[int] = field(default_factory=list)
    rows: float = 0.0

    @property
    def has_room(self) -> bool:
        return len(self.held) < self.size


def _rank_for(expert: int, ranks: Sequence[_Rank], rows: Sequence[float]) -> _Rank:
    """The rank with least rows that has room and does not hold the expert; where all with room do, room is made."""
    others = [rank for rank in ranks if expert not in rank.held]
    if open_ones := [rank for rank in others if rank.has_room]:
        return min(open_ones, key=lambda rank: rank.rows)
    # A full rank holds as many as one with room, and not this expert: so another one that can go there.
    full = min(others, key=lambda rank: rank.rows)
    roomy = next(rank for rank in ranks if rank.has_room)
    moved = min((one for one in full.held if one not in roomy.held), key=lambda one: rows[one])
    full.held.remove(moved)
    roomy.held.append(moved)
    full.rows, roomy.rows = full.rows - rows[moved], roomy.rows + rows[moved]
    return full
