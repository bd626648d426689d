"""`CachedMixers`: layers that have a cache, with it; they are told of a batch, and then a model runs over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from atom_kernels.protocols import BatchGeometry, Caches
from atom_models.forward_context import ForwardContext, set_forward_context

if TYPE_CHECKING:
    from atom_models.adapters.step import AdapterStep


@dataclass(frozen=True)
class CachedMixers:
    """The mixers of one model.

    Attributes:
        mixers: layers with a cache by their names, each with its `plan`.
        kv_caches: their caches, by the same names.
        plans: plans of attention, each with its group's index and the names of its layers. Each needs its metadata
            built once a step.
    """

    mixers: Mapping[str, Any] = field(default_factory=dict)
    kv_caches: Mapping[str, Caches] = field(default_factory=dict)
    plans: Sequence[tuple[Any, int, Sequence[str]]] = ()

    @classmethod
    def over(
        cls, mixers: Mapping[str, Any], kv_caches: Mapping[str, Caches], groups: Sequence[Sequence[str]]
    ) -> CachedMixers:
        """`mixers` over their part of `kv_caches`, which are by layer name; `groups` has the layers of each group."""
        names: dict[tuple[Any, int], list[str]] = {}
        for index, layers in enumerate(groups):
            for name in layers:
                if name in mixers:
                    names.setdefault((mixers[name].plan, index), []).append(name)
        plans = [(plan, index, layers) for (plan, index), layers in names.items()]
        return cls(mixers, {name: kv_caches[name] for name in mixers}, plans)

    def mixing(
        self, geometries: Sequence[BatchGeometry], adapters: AdapterStep | None = None
    ) -> AbstractContextManager[None]:
        """Tell the mixers of a batch, whose `geometries` are one for each group, and linears of its adapters."""
        metadata = self._build_metadata(geometries)
        return set_forward_context(ForwardContext(self.kv_caches, metadata, self.mixers, adapters=adapters))

    def _build_metadata(self, geometries: Sequence[BatchGeometry]) -> dict[str, Any]:
        """The metadata of a batch by layer name; layers of one plan share theirs."""
        metadata: dict[str, Any] = {}
        for plan, group, names in self.plans:
            metadata.update(dict.fromkeys(names, plan.runner.build_metadata(geometries[group])))
        return metadata
