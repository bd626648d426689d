"""What attention reads beside its inputs: the caches and the metadata of the step that is running.

The one mutable module global of the package. It is read inside an opaque op, so that no traced graph ever holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

Attend = Callable[..., torch.Tensor]
"""``(q, k, v) -> out``, or ``(q, kv) -> out``: a layer's attention over the cache and the metadata of the context."""
BetweenGraphs = Callable[[Attend, Sequence[torch.Tensor], torch.Tensor], None]
"""``(attend, inputs, out)``: has each replay of what is being captured fill `out` with ``attend(*inputs)``."""


@dataclass(frozen=True)
class ForwardContext:
    """One step's state for every attention layer.

    Attributes:
        kv_caches: layer name -> its cache tensors, as its plan's layout lists them.
        metadata: layer name -> what its plan's `build_metadata` made of this step's batch.
        between_graphs: takes attention out of the graphs while a step is captured in pieces; else None.
    """

    kv_caches: Mapping[str, tuple[torch.Tensor, ...]]
    metadata: Mapping[str, Any]
    between_graphs: BetweenGraphs | None = None


_current: ForwardContext | None = None


@contextmanager
def set_forward_context(context: ForwardContext) -> Iterator[None]:
    """Makes `context` the one that attention reads while a model runs; nests."""
    global _current
    previous, _current = _current, context
    try:
        yield
    finally:
        _current = previous


def get_forward_context() -> ForwardContext:
    """The context of the running step.

    Raises:
        RuntimeError: none is set.
    """
    if _current is None:
        raise RuntimeError("no forward context: run the model inside `with set_forward_context(ForwardContext(...))`")
    return _current


def attend_in_step(attend: Attend, inputs: Sequence[torch.Tensor], out_shape: Sequence[int]) -> torch.Tensor:
    """What ``attend(*inputs)`` gives, of `out_shape` and the first input's dtype.

    It is called at once, unless the step is being captured in pieces: then at each replay, with the context of that.
    """
    between_graphs = get_forward_context().between_graphs
    if between_graphs is None:
        return attend(*inputs)
    out = inputs[0].new_empty(out_shape)
    between_graphs(attend, inputs, out)
    return out
