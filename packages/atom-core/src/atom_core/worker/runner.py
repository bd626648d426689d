"""`Runner`: what one worker does with the steps that it gets. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from atom_core.messages import ModelOutput, NamedAdapter, SchedulerOutput
from atom_kernels.protocols import GroupSpec, Pages

Masks = Mapping[str, Any]
"""By request id, tokens that may be sampled: int32 ``[ceil(vocab / 32)]``, bit ``i % 32`` of word ``i // 32``."""


class RunnerInfo(msgspec.Struct, frozen=True):
    """What a runner worked out while it loaded.

    Attributes:
        num_blocks, max_model_len: blocks of the KV cache, and tokens of the longest request that it lets in.
        groups: what each group of layers keeps. Those with blocks draw from the same ones.
        timings: seconds of each phase, by name.
        num_slots, num_snapshots: slots for the states of requests, and for states behind cached prefixes.
        choices: a line for each value that was chosen for the user.
        launches: a device computes by itself what the runner launches there.
        offload_places: places for blocks that leave the cache, in memory and on a disk.
        send_places: places in memory for blocks that other engines are to fetch, between those two.
    """

    num_blocks: int
    max_model_len: int
    groups: tuple[GroupSpec, ...] = (Pages(),)
    timings: dict[str, float] = {}
    choices: list[str] = []
    num_slots: int = 0
    num_snapshots: int = 0
    launches: bool = False
    offload_places: tuple[int, int] = (0, 0)
    send_places: int = 0

    @property
    def can_keep_prefixes(self) -> bool:
        """Whether prefixes can be found; where layers keep states, memory for those behind prefixes is needed."""
        return self.num_snapshots > 0 or not any(group.in_slots for group in self.groups)


PendingOutput = Callable[[], ModelOutput]
"""Waits, in any thread, for the results of a step that was launched; raises what went wrong on the device."""


class Runner(Protocol):
    """What one worker does; an executor calls it from one thread, `forward` and `sample` in turn.

    On a device that computes by itself both return once the work is launched, so that steps queue up there.
    """

    def load(self) -> RunnerInfo: ...
    def forward(self, step: SchedulerOutput) -> None: ...
    def sample(self, masks: Masks | None) -> PendingOutput: ...
    def sleep(self, level: int) -> None: ...
    def wake_up(self) -> None: ...
    def prepare(self) -> bool: ...
    @property
    def is_preparing(self) -> bool: ...
    def load_adapter(self, adapter: NamedAdapter) -> None: ...
    def unload_adapter(self, adapter_id: int) -> None: ...
    def profile(self, *, start: bool) -> None: ...
    def close(self) -> None: ...
