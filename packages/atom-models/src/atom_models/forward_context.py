"""What attention reads beside its inputs: the caches and the metadata of the step that is running.

Each thread has its own, since engines of one process run in threads of theirs. It is read inside an opaque op, so that
no traced graph ever holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
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


_current: ContextVar[ForwardContext] = ContextVar("forward_context")


@contextmanager
def set_forward_context(context: ForwardContext) -> Iterator[None]:
    """Makes `context` the one that attention reads while a model runs in this thread; nests."""
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
