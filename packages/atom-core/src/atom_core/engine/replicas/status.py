"""`EngineStatus`: how one of several engines does, for health, metrics and people. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal, TypeVar

import msgspec

from atom_core.engine.info import EngineInfo
from atom_core.messages import KVTransferStats, OffloadStats, StepStats

_Counts = TypeVar("_Counts", OffloadStats, KVTransferStats)
EngineState = Literal["starting", "serving", "restarting", "dead"]


class EngineStatus(msgspec.Struct, frozen=True):
    """An engine as of now.

    Attributes:
        rank: its number.
        state: "starting" before it first works, "restarting" while its process is started anew.
        pid: the id of its process; None before there is one.
        num_restarts: how often its process was started anew.
        cause: what its last death was due to; None where it has not died.
        info: what it resolved at its last start.
        stats: counts after its last step; None before its first news.
    """

    rank: int
    state: EngineState
    pid: int | None = None
    num_restarts: int = 0
    cause: str | None = None
    info: EngineInfo | None = None
    stats: StepStats | None = None


def total_stats(all_stats: Sequence[StepStats]) -> StepStats:
    """The sums of the counts of several engines."""
    if len(all_stats) == 1:
        return all_stats[0]
    by_field = {name: [getattr(stats, name) for stats in all_stats] for name in StepStats.__struct_fields__}
    accepted = _summed_by_place(by_field.pop("num_accepted_tokens_per_pos"))
    sizes = _summed_by_place(by_field.pop("num_steps_by_size"))
    offload = _sums(OffloadStats, by_field.pop("offload"))
    transfer = _sums(KVTransferStats, by_field.pop("kv_transfer"))
    return StepStats(
        **{name: sum(values) for name, values in by_field.items()},
        num_accepted_tokens_per_pos=accepted,
        num_steps_by_size=sizes,
        offload=offload,
        kv_transfer=transfer,
    )


def _summed_by_place(lists: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*lists, fillvalue=0)))


def _sums(kind: type[_Counts], counts: Sequence[_Counts | None]) -> _Counts | None:
    """Sums of each field, over the engines that have any."""
    found = [msgspec.structs.astuple(each) for each in counts if each is not None]
    return kind(*map(sum, zip(*found, strict=True))) if found else None
