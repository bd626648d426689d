"""Moves experts between ranks: which slots change, and how their weights get there."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import torch

from atom_models.layers.mixture.placement import ExpertPlacement

if TYPE_CHECKING:
    from atom_kernels.protocols import Collectives


def settled(new: ExpertPlacement, old: ExpertPlacement) -> ExpertPlacement:
    """The new placement with experts that stay on a rank in the slots which they had there.

    Raises:
        ValueError: a rank would hold more or fewer experts than before, or one of them twice.
    """
    sizes = [[len(of_rank) for of_rank in one.slots] for one in (new, old)]
    if sizes[0] != sizes[1] or any(len(set(of_rank)) < len(of_rank) for of_rank in new.slots):
        raise ValueError(
            f"ranks hold {sizes[1]} experts, and cannot come to hold {list(new.slots)}: each has as many slots as "
            "before, and no expert twice"
        )
    return ExpertPlacement(tuple(_settled(*pair) for pair in zip(new.slots, old.slots, strict=True)))


def _settled(new: tuple[int, ...], old: tuple[int, ...]) -> tuple[int, ...]:
    # One that was held twice stays in its first slot alone.
    stays = [expert in new and expert not in old[:slot] for slot, expert in enumerate(old)]
    arriving = iter([expert for expert in new if expert not in old])
    return tuple(expert if stay else next(arriving) for expert, stay in zip(old, stays, strict=True))


def sent_slots(old: ExpertPlacement, new: ExpertPlacement) -> list[list[int]]:
    """The slots that each rank sends: each expert that arrives anywhere once, by the rank that sends least."""
    sent: list[list[int]] = [[] for _ in old.slots]
    pairs = zip(old.slots, new.slots, strict=True)
    for expert in sorted(set(chain.from_iterable(set(after) - set(before) for before, after in pairs))):
        owners = [rank for rank, of_rank in enumerate(old.slots) if expert in of_rank]
        rank = min(owners, key=lambda one: len(sent[one]))
        sent[rank].append(old.slots[rank].index(expert))
    return sent


def move_slots(tensor: torch.Tensor, old: ExpertPlacement, new: ExpertPlacement, ranks: Collectives) -> None:
    """Give the rows of a tensor, one for each slot of this rank, to the experts of a new placement, which is settled.

    In each round every rank sends one row to all others, so that beside the rows that arrive here there is room for
    one row of each rank. Nothing is overwritten before all is sent.
    """
    sent, rank = sent_slots(old, new), ranks.rank
    changed = {expert: slot for slot, expert in enumerate(new.slots[rank]) if old.slots[rank][slot] != expert}
    rows = tensor.view(len(tensor), -1).view(torch.uint8)
    arrived: dict[int, torch.Tensor] = {}
    for round_ in range(max(map(len, sent))):
        slot = sent[rank][round_] if round_ < len(sent[rank]) else 0
        found = ranks.all_gather(rows[slot : slot + 1].clone(), 0)
        for source, slots in enumerate(sent):
            if round_ < len(slots) and (into := changed.get(old.slots[source][slots[round_]])) is not None:
                arrived[into] = found[source].clone()
    for slot, row in arrived.items():
        rows[slot].copy_(row)
