"""`plan_pages`: which attention layers share a block table, and how their blocks make pages of equal bytes.

A page is one block id of the pool: `block_size` tokens of every layer of one group. It consists of *places*, each with
memory of its own, contiguous over the ids; layer i of every group lies in place i. So all pages have the bytes of all
places, whichever group a page is given to, and any page can go to any group.

Layers that see everything and layers of each window size are kinds that never share a group, for their blocks live
differently long. Where one kind has more layers than a page has places, it makes several groups. Gemma 3 12B, with 8
global and 40 local layers, has 8 places: one global group and five local ones, and nothing is unused. The 27B, with 10
and 52, has 10: the sixth local group leaves 8 places unused, which costs something for each window but nothing for
the context. The number of places is the one with the least unused share, where that of layers without a window counts
twice, and each group, which costs time in each step, as much as 2% unused.

With a single kind there is one group, each layer has its place, and nothing is unused. Layers of several kinds must
have blocks of equal bytes to share places; a model whose kinds differ in that keeps the whole context for every
layer, as one group. So does one whose windows are as long as the longest request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from atom_kernels.protocols import CacheLayout, GroupSpec, Pages

# A further group is worth this share of a page that it keeps from being unused.
GROUP_COST = 0.02
WEIGHT_WITHOUT_WINDOW = 2


@dataclass(frozen=True)
class PageGroup:
    """Layers whose blocks are given and taken together; layer i lies in place i of each page."""

    spec: GroupSpec
    layers: tuple[str, ...]


@dataclass(frozen=True)
class CachePages:
    """How attention layers are gathered.

    Attributes:
        groups: in order of their first layers; at least one, without layers where there are none.
        places: the layout of each place.
        token_bytes: bytes that one token takes in all layers with pages.
        slot_bytes: bytes that one state takes in all layers that keep one; these are the last group.
    """

    groups: tuple[PageGroup, ...]
    places: tuple[CacheLayout, ...]
    token_bytes: int
    slot_bytes: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of one block id."""
        return sum(layout.block_bytes for layout in self.places)

    @property
    def slots_each(self) -> int:
        """Slots that a request holds; 0 where no layers keep states."""
        return max(group.spec.slots_each for group in self.groups)

    def of_layers(self, mixers: Mapping[str, Any]) -> CachePages:
        """The pages of a stage, which has these of the layers: the same groups, each with those of its layers."""
        groups = [replace(group, layers=tuple(filter(mixers.__contains__, group.layers))) for group in self.groups]
        layouts = {name: mixers[name].plan.layout for group in groups for name in group.layers}
        paged = [group.layers for group in groups if not group.spec.in_slots]
        token_bytes = sum(layouts[name].block_bytes // layouts[name].block_size for layers in paged for name in layers)
        states = [name for group in groups if group.spec.in_slots for name in group.layers]
        return CachePages(
            tuple(groups),
            # Layers that share places have layouts of equal bytes.
            tuple(layouts[name] for name in max(paged, key=len)),
            token_bytes,
            sum(layouts[name].block_bytes for name in states),
        )

    @property
    def specs(self) -> tuple[GroupSpec, ...]:
        """What each group keeps."""
        return tuple(group.spec for group in self.groups)


def plan_pages(mixers: Mapping[str, Any], max_model_len: int) -> CachePages:
    """Gather `mixers`, each with a `plan`, in order of execution."""
    states = {
        name: layer.plan.layout.block_bytes for name, layer in mixers.items() if layer.plan.problem.keeps.in_slots
    }
    if not states:
        return _plan_pages(mixers, max_model_len)
    pages = _plan_pages({name: layer for name, layer in mixers.items() if name not in states}, max_model_len)
    group = PageGroup(mixers[next(iter(states))].plan.problem.keeps, tuple(states))
    return replace(pages, groups=(*pages.groups, group), slot_bytes=sum(states.values()))


def _plan_pages(mixers: Mapping[str, Any], max_model_len: int) -> CachePages:
    layouts: dict[str, CacheLayout] = {name: layer.plan.layout for name, layer in mixers.items()}
    kinds: dict[GroupSpec, list[str]] = {}
    for name, layer in mixers.items():
        kinds.setdefault(layer.plan.problem.keeps.within(max_model_len), []).append(name)
    token_bytes = sum(layout.block_bytes // layout.block_size for layout in layouts.values())
    sizes = {tuple(tensor.num_bytes for tensor in layout.tensors) for layout in layouts.values()}
    if len(kinds) < 2 or len(sizes) > 1:
        spec = next(iter(kinds)) if len(kinds) == 1 else Pages()
        return CachePages((PageGroup(spec, tuple(layouts)),), tuple(layouts.values()), token_bytes)
    num_places = _num_places({spec: len(layers) for spec, layers in kinds.items()})
    groups = [
        PageGroup(spec, tuple(layers[start : start + num_places]))
        for spec, layers in kinds.items()
        for start in range(0, len(layers), num_places)
    ]
    return CachePages(tuple(groups), (next(iter(layouts.values())),) * num_places, token_bytes)


def _num_places(num_layers: Mapping[GroupSpec, int]) -> int:
    """The layers of a group, given how many each kind has."""

    def cost(num_places: int) -> float:
        unused, num_groups = 0.0, 0
        for spec, count in num_layers.items():
            groups_of_kind = -(-count // num_places)
            weight = WEIGHT_WITHOUT_WINDOW if spec.keeps_all else 1
            unused = max(unused, weight * (1 - count / (groups_of_kind * num_places)))
            num_groups += groups_of_kind
        return unused + GROUP_COST * num_groups

    return min(range(1, max(num_layers.values()) + 1), key=cost)
