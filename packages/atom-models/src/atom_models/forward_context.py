"""What layers read beside their inputs: the caches, the metadata and the adapters of the step that is running.

Each thread has its own, since engines of one process run in threads of theirs. It is read inside an opaque op, so that
no traced graph ever holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from atom_kernels.protocols import Caches
    from atom_models.adapters.step import AdapterStep
    from atom_models.layers.mixers.mixer import Mixer

Mix = Callable[..., torch.Tensor]
"""``(*inputs) -> out``: a mixer over the cache and the metadata of the context."""
BetweenGraphs = Callable[[Mix, Sequence[torch.Tensor], torch.Tensor], None]
"""``(mix, inputs, out)``: has each replay of what is being captured fill `out` with ``mix(*inputs)``."""


@dataclass(frozen=True)
class ForwardContext:
    """One step's state for every mixer, and for linears with adapters.

    Attributes:
        kv_caches: layer name -> its cache tensors, as its plan's layout lists them.
        metadata: layer name -> what its plan's `build_metadata` made of this step's batch.
        mixers: the layers themselves by name, which a traced model calls by name; an eager one needs none.
        between_graphs: takes mixers out of the graphs while a step is captured in pieces; else None.
        adapters: which adapter each token has; None where none has one.
    """

    kv_caches: Mapping[str, Caches]
    metadata: Mapping[str, Any]
    mixers: Mapping[str, Mixer] = field(default_factory=dict)
    between_graphs: BetweenGraphs | None = None
    adapters: AdapterStep | None = None

    def mixer(self, name: str) -> Mixer:
        """The layer of that name.

        Raises:
            RuntimeError: it is not known here.
        """
        if name not in self.mixers:
            raise RuntimeError(
                f"the forward context knows no layer {name}; a compiled model needs `ForwardContext(..., "
                "mixers=mixer_layers(model))`"
            )
        return self.mixers[name]


_current: ContextVar[ForwardContext] = ContextVar("forward_context")


@contextmanager
def set_forward_context(context: ForwardContext) -> Iterator[None]:
    """Makes `context` the one that mixers read while a model runs in this thread; nests."""
    before = _current.set(context)
    try:
        yield
    finally:
        _current.reset(before)


def get_forward_context() -> ForwardContext:
    """The context of the step that this thread runs.

    Raises:
        RuntimeError: none is set.
    """
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError(
            "no forward context: run the model inside `with set_forward_context(ForwardContext(...))`, in one thread"
        ) from None


def step_of_adapters() -> AdapterStep | None:
    """Which adapters the tokens have of the step that this thread runs; None where none has one."""
    context = _current.get(None)
    return None if context is None else context.adapters


def mix_in_step(
    mix: Mix, inputs: Sequence[torch.Tensor], out_shape: Sequence[int], out_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The result of ``mix(*inputs)``, of `out_shape` and `out_dtype`, or else the first input's dtype.

    It is called at once, unless the step is being captured in pieces: then each replay calls it, with its own context.
    """
    between_graphs = get_forward_context().between_graphs
    if between_graphs is None:
        return mix(*inputs)
    out = inputs[0].new_empty(out_shape, dtype=out_dtype)
    between_graphs(mix, inputs, out)
    return out
