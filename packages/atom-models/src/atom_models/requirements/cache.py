"""How much cache a token takes, and in which layers it stays."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from atom_kernels.mixers import select_mixer
from atom_kernels.platform import Platform
from atom_kernels.protocols import CacheFormat, CacheLayout, GroupSpec, Slots
from atom_kernels.protocols.cache_format import TOKEN_SCALES
from atom_models.model import mixer_layers

# Those that are planned with; any platform's float8 is taken for this one.
PLANNED_FLOAT8 = "float8_e4m3fn"
PLANNED_CACHES = (
    CacheFormat("float32"),
    CacheFormat("bfloat16"),
    CacheFormat(PLANNED_FLOAT8),
    CacheFormat(PLANNED_FLOAT8, TOKEN_SCALES),
)


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same kind of state.

    Attributes:
        spec: what they keep.
        num_layers: in the group.
        problems: what the layers are, on one rank, each with how many layers are like it.
    """

    spec: GroupSpec
    num_layers: int
    problems: Mapping[Any, int]

    def num_bytes(self, num_tokens: int, block_size: int, cache: CacheFormat, platform: Platform) -> int:
        """What a request of `num_tokens` takes in all layers of the group, in the layouts that `platform` chooses."""
        layouts = ((_layout(problem, cache, platform), count) for problem, count in self.problems.items())
        token_bytes = sum(layout.block_bytes * count // layout.block_size for layout, count in layouts)
        return self.spec.tokens_kept(num_tokens, block_size) * token_bytes


def cache_groups(model: nn.Module) -> tuple[CacheGroup, ...]:
    """The groups of one rank's model, the one that keeps everything first."""
    groups: dict[GroupSpec, Counter[Any]] = {}
    for layer in mixer_layers(model).values():
        groups.setdefault(layer.problem.keeps, Counter())[layer.problem] += 1
    return tuple(
        CacheGroup(spec, problems.total(), problems)
        for spec, problems in sorted(groups.items(), key=lambda item: not item[0].keeps_all)
    )


def snapshot_bytes(groups: Iterable[CacheGroup], room: int) -> int:
    """What an engine gives of `room` bytes to states behind cached prefixes: a quarter, where layers keep states."""
    has_states = any(group.spec.in_slots for group in groups)
    return max(room, 0) // Slots.snapshot_part if has_states else 0


@functools.cache
def _layout(problem: Any, cache: CacheFormat, platform: Platform) -> CacheLayout:
    if cache.is_float8:
        cache = replace(cache, dtype=platform.float8)
    return select_mixer(replace(problem, cache=cache), platform).layout
