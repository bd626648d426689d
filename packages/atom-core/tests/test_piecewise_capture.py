"""Work recorded in pieces gives what it gives at once, with attention on what the context says at the replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from atom_core.worker.graphs.piecewise_capture import Parts
from atom_models.forward_context import ForwardContext, get_forward_context, mix_in_step, set_forward_context

LAYERS = 3


class RecordedOps(TorchDispatchMode):
    """Stands for a CUDA graph: operators on tensors at fixed addresses, done again by a replay."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self._calls:
            for old, new in zip(tree_leaves(out), tree_leaves(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def begin() -> Callable[[], Callable[[], None]]:
    ops = RecordedOps()
    ops.__enter__()

    def end() -> Callable[[], None]:
        ops.__exit__(None, None, None)
        return ops.replay

    return end


class Work:
    """Layers around attention that scales by a number in the context."""

    def __init__(self) -> None:
        self.x = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
        self.attended = 0

    def __call__(self) -> torch.Tensor:
        hidden = self.x + 1
        for _ in range(LAYERS):
            hidden = mix_in_step(self._attend, (hidden * 2, hidden.neg()), (5, 4)).repeat(1, 2) + hidden
        return hidden

    def _attend(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        self.attended += 1
        return (q * get_forward_context().metadata["scale"] + k)[:, 2:6]


def context_of(scale: float) -> ForwardContext:
    return ForwardContext(kv_caches={}, metadata={"scale": scale})


def test_a_replay_attends_by_the_context_that_is_set_then() -> None:
    work, parts = Work(), Parts(begin, lambda tensor: tensor)
    with set_forward_context(context_of(1.0)):
        output = parts.record(work, in_pieces=True)
    assert work.attended == 0
    assert len(parts.replays) == 2 * LAYERS + 1
    for scale in (0.5, -2.0):
        work.x.copy_(torch.randn(5, 8))
        with set_forward_context(context_of(scale)):
            for replay in parts.replays:
                replay()
            torch.testing.assert_close(output, work(), rtol=0, atol=0)


def test_whole_work_has_attention_in_its_graph() -> None:
    work, parts = Work(), Parts(begin, lambda tensor: tensor)
    with set_forward_context(context_of(3.0)):
        output = parts.record(work, in_pieces=False)
        expected = work()
    work.attended = 0
    output.fill_(float("nan"))
    parts.replays[0]()
    assert (len(parts.replays), work.attended) == (1, 0)
    torch.testing.assert_close(output, expected, rtol=0, atol=0)


def test_a_failure_ends_the_open_graph_and_is_what_is_told() -> None:
    def begin_what_cannot_end() -> Callable[[], Callable[[], None]]:
        end = begin()

        def fail() -> Callable[[], None]:
            end()
            raise RuntimeError("capture was invalidated")

        return fail

    def run_out() -> torch.Tensor:
        torch.zeros(1)
        raise RuntimeError("out of memory")

    for begin_graph in (begin, begin_what_cannot_end):
        parts = Parts(begin_graph, lambda tensor: tensor)
        with set_forward_context(context_of(1.0)), pytest.raises(RuntimeError, match="out of memory"):
            parts.record(run_out, in_pieces=True)
        assert parts.replays == []
        assert _get_current_dispatch_mode() is None
