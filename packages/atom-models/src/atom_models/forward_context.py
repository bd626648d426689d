"""What attention reads beside its inputs: the caches and the metadata of the step that is running.

The one mutable module global of the package. It is read inside an opaque op, so that no traced graph ever holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class ForwardContext:
    """One step's state for every attention layer.

    Attributes:
        kv_caches: layer name -> its cache tensors, as its plan's layout lists them.
        metadata: layer name -> what its plan's `build_metadata` made of this step's batch.
    """

    kv_caches: Mapping[str, tuple[torch.Tensor, ...]]
    metadata: Mapping[str, Any]


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
