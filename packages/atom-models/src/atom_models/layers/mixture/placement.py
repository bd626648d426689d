"""`ExpertPlacement`: which rank holds which experts of a mixture, where ranks hold whole experts and not slices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import lcm
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.mixture.moe_config import MoEConfig


@dataclass(frozen=True)
class ExpertPlacement:
    """The experts that each rank holds.

    Attributes:
        slots: the ids of each rank's experts, in the order in which it holds them. An expert may have several
            slots: rows that chose it take these copies in turn.

    Raises:
        ValueError: a rank holds none, or an expert is nowhere.
    """

    slots: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        held = {expert for of_rank in self.slots for expert in of_rank}
        if not all(self.slots):
            raise ValueError(f"rank {self.slots.index(())} of {len(self.slots)} holds no expert: each needs one")
        if held != set(range(len(held))):
            missing = min(set(range(max(held) + 1)) - held)
            raise ValueError(f"no rank holds expert {missing}")

    @classmethod
    def contiguous(cls, num_experts: int, num_ranks: int) -> ExpertPlacement:
        """Equal runs of experts; where these do not come out even, the first ranks hold one more."""
        each, left = divmod(num_experts, num_ranks)
        starts = [rank * each + min(rank, left) for rank in range(num_ranks + 1)]
        return cls(tuple(tuple(range(*ends)) for ends in pairwise(starts)))

    @property
    def num_experts(self) -> int:
        return len({expert for of_rank in self.slots for expert in of_rank})

    @property
    def is_even(self) -> bool:
        """Every rank has as many slots."""
        return len({len(of_rank) for of_rank in self.slots}) == 1

    @property
    def num_turns(self) -> int:
        """Turns in which rows go through the copies of experts, for every placement on as many slots.

        Experts with up to four copies, or with the most that there may be, share all turns evenly.
        """
        num_slots = sum(map(len, self.slots))
        most = max(self._most_copies, min(len(self.slots), num_slots - self.num_experts + 1))
        return lcm(12, most) if most > 1 else 1

    @property
    def _most_copies(self) -> int:
        return max(Counter(expert for of_rank in self.slots for expert in of_rank).values())

    def slots_on(self, rank: int, num_turns: int) -> list[list[int]]:
        """A rank's slot of each expert, or the number of its slots where another rank has it: a list for a turn."""
        copies: dict[int, list[int]] = {expert: [] for expert in range(self.num_experts)}
        for owner, of_rank in enumerate(self.slots):
            for slot, expert in enumerate(of_rank):
                copies[expert].append(slot if owner == rank else len(self.slots[rank]))
        return [[found[turn % len(found)] for found in copies.values()] for turn in range(num_turns)]


PlaceExperts = Callable[[str, int, int], ExpertPlacement]
"""``(a mixture's name, its number of experts, the number of ranks) -> where they are``."""


def place_contiguously(name: str, num_experts: int, num_ranks: int) -> ExpertPlacement:
    """The placement that every engine begins with.

    Raises:
        ValueError: there are fewer experts than ranks.
    """
    if num_experts < num_ranks:
        raise ValueError(
            f"{name}: there are {num_experts} experts, and each of {num_ranks} tensor-parallel ranks needs one: give a "
            "smaller tensor_parallel_size, or leave enable_expert_parallel out"
        )
    return ExpertPlacement.contiguous(num_experts, num_ranks)


class SlotsOfIds:
    """``slots_of(ids [T, K]) -> [T, K]``: the slots of a rank in the place of experts' ids, both int32.

    Experts of other ranks have the number of slots as theirs. The row decides which copy serves, so that each gets as
    many rows; where results may not depend on other rows it is always the first.
    Steps that were captured read the same memory after `place` has another placement on as many slots.

    Attributes:
        num_slots: how many slots the rank has.
    """

    def __init__(
        self, placement: ExpertPlacement, rank: int, device: torch.device | str, *, batch_invariant: bool
    ) -> None:
        self._rank, self._num_experts = rank, placement.num_experts
        self.num_slots = len(placement.slots[rank])
        self._num_turns = 1 if batch_invariant else placement.num_turns
        self._slots = torch.empty(self._num_turns * self._num_experts, dtype=torch.int32, device=device)
        self.place(placement)

    def place(self, placement: ExpertPlacement) -> None:
        """From now on experts are where this placement has them."""
        turns = placement.slots_on(self._rank, self._num_turns)
        self._slots.copy_(torch.tensor(turns, dtype=torch.int32).flatten())

    def __call__(self, ids_TK: torch.Tensor) -> torch.Tensor:
        at = ids_TK
        if self._num_turns > 1:
            rows_T1 = torch.arange(ids_TK.shape[0], dtype=torch.int32, device=ids_TK.device)[:, None]
            at = rows_T1 % self._num_turns * self._num_experts + ids_TK
        return self._slots.index_select(0, at.flatten()).view(ids_TK.shape)


@dataclass(frozen=True)
class ExpertShare:
    """What one rank holds of a mixture's experts.

    Attributes:
        experts: the ids of those that it holds, in the order of its slots.
        absent: the ids of the others.
        inside: the first element of their intermediate size that it holds, and the one past the last.
        adds_bias: it adds the bias of the second product, which the sum over ranks holds once.
        placement: where all experts are; None where every rank has a part of each.
    """

    experts: Sequence[int]
    absent: Sequence[int]
    inside: tuple[int, int]
    adds_bias: bool
    placement: ExpertPlacement | None = None

    @property
    def size(self) -> int:
        """Its part of the intermediate size."""
        return self.inside[1] - self.inside[0]

    @property
    def num_absent(self) -> int:
        """Slots of other ranks."""
        slots = () if self.placement is None else self.placement.slots
        return sum(len(of_rank) for of_rank in slots) - len(self.experts) if slots else 0

    @property
    def is_even(self) -> bool:
        """Other ranks launch the same kernels for a number of tokens."""
        return self.placement is None or self.placement.is_even

    def slots_of_ids(self, context: BuildContext) -> tuple[SlotsOfIds, ...]:
        """What finds the slots of the rank beside this one in each engine, by the engine's number.

        None where slots are the ids. All are on this rank's device.
        """
        if self.placement is None:
            return ()
        invariant, groups = context.platform.batch_invariant, context.groups
        beside = range(groups.tensor.rank, groups.data.size * groups.tensor.size, groups.tensor.size)
        return tuple(SlotsOfIds(self.placement, rank, context.device, batch_invariant=invariant) for rank in beside)


def share_of_experts(config: MoEConfig, context: BuildContext, name: str) -> ExpertShare:
    """What the context's rank holds of the experts of that name.

    Raises:
        ValueError: the ranks cannot share them so.
    """
    count, size, ranks = config.num_experts, config.intermediate_size, context.groups.expert
    if ranks is None or ranks.size == 1:
        part, rank = context.split(size, f"{name}: intermediate_size of an expert"), context.collectives.rank
        return ExpertShare(range(count), (), (rank * part, (rank + 1) * part), adds_bias=rank == 0)
    placement = context.place_experts(name, count, ranks.size)
    if (len(placement.slots), placement.num_experts) != (ranks.size, count):
        raise ValueError(
            f"{name}: {placement.num_experts} experts are placed on {len(placement.slots)} ranks, and there are "
            f"{count} experts and {ranks.size} ranks"
        )
    held = placement.slots[ranks.rank]
    absent = tuple(sorted(set(range(count)).difference(held)))
    return ExpertShare(held, absent, (0, size), adds_bias=True, placement=placement)
