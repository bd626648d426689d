"""Work of a CPU that is recorded once, and then done again without the Python around it.

A decode step of a small model calls hundreds of kernels that take microseconds each, and to get from one to the next
takes Python as long. What it calls is the same each time, over the same memory: calls of C kernels and a few of torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atom_kernels.recording.native_calls import Call, joined
from atom_kernels.recording.operators import (
    COMPOSED,
    ReadsOfHost,
    is_composed,
    out_variant,
    quickest,
    tensors_in,
    why_not_again,
)

_recording: ContextVar[_Recording | None] = ContextVar("recording", default=None)
# Tensors are aligned as torch's own are.
_ALIGNMENT = 64
_ALLOCATIONS = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)
_COPIES = frozenset({torch.ops.aten._to_copy.default, torch.ops.aten.clone.default})


class RecordedWork:
    """Calls in their order, over memory that is theirs.

    Attributes:
        outputs: what the work returned; each `replay` writes it anew.
        why_not: why it cannot be replayed, in words; None where it can. Python saw values then, and may decide by them.
    """

    def __init__(
        self, outputs: Any, calls: Sequence[Call], memory: Sequence[np.ndarray], why_not: str | None = None
    ) -> None:
        self.outputs, self.why_not = outputs, why_not
        self._steps, self._memory = joined(calls), memory

    @property
    def num_bytes(self) -> int:
        """Bytes of that memory."""
        return sum(place.nbytes for place in self._memory)

    def replay(self) -> None:
        """Do the work again, over what its inputs hold now.

        Raises:
            RuntimeError: it cannot be replayed.
            MemoryError: a kernel had no memory.
        """
        if self.why_not is not None:
            raise RuntimeError(f"this work cannot be replayed, since {self.why_not}: see why_not before")
        for step in self._steps:
            step()


def record(work: Callable[[], Any]) -> RecordedWork:
    """Do `work` once, and record which kernels and operators of torch it calls.

    It must read its inputs from the same memory each time, and decide nothing by what they hold: where it brings any to
    Python, its `why_not` says so. Other threads may work meanwhile: theirs is not recorded.
    """
    recording = _Recording()
    before = _recording.set(recording)
    try:
        with recording, ReadsOfHost(recording.refuse):
            outputs = work()
    finally:
        _recording.reset(before)
    return RecordedWork(outputs, recording.calls, recording.memory, recording.why_not)


def recordable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of C, by whose calls work is recorded."""

    def call(*arguments: Any) -> Any:
        answer = function(*arguments)
        recording = _recording.get()
        if recording is not None:
            recording.calls.append((function, _converted(function, arguments), answer))
        return answer

    return call


class _Recording(TorchDispatchMode):
    """Sees what torch is asked for, and gives tensors memory that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.memory: list[np.ndarray] = []
        self.why_not: str | None = None
        self._free: dict[int, list[np.ndarray]] = {}

    def refuse(self, reason: str) -> None:
        """What was done cannot be done again."""
        self.why_not = self.why_not or reason

    def see(self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        if is_composed(operator):
            with self:
                return operator._op_dk(COMPOSED, *args, **kwargs)
        if (reason := why_not_again(operator, args)) is not None:
            self.refuse(reason)
        result = operator(*args, **kwargs)
        if self.why_not is not None:
            return result
        if operator in _ALLOCATIONS:
            return self._placed(result)
        if operator._schema.is_mutable:
            self._add(lambda: operator(*args, **kwargs))
            return result
        # All others are views, over the same memory each time.
        known = {_address(each) for each in tensors_in((*args, *kwargs.values()))}
        if any(_address(each) not in known for each in tensors_in(result)):
            self._add(_again(operator, args, kwargs, result))
        return result

    def _add(self, call: Callable[[], Any]) -> None:
        def run() -> None:
            call()

        self.calls.append((run, (), None))

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same in memory of the recording, which another tensor gets once nothing looks at this one any more."""
        size = tensor.untyped_storage().nbytes()
        if not size:
            return tensor
        free = self._free.setdefault(size, [])
        place = free.pop() if free else self._allocate(size)
        lent = place[:]
        weakref.finalize(lent, free.append, place).atexit = False
        return torch.from_numpy(lent).view(tensor.dtype).as_strided(tensor.shape, tensor.stride())

    def _allocate(self, size: int) -> np.ndarray:
        whole = np.empty(size + _ALIGNMENT, dtype=np.uint8)
        begin = -whole.ctypes.data % _ALIGNMENT
        self.memory.append(whole)
        return whole[begin : begin + size]


# In the body of the class torch would wrap it, and import its compiler when the first step is recorded.
_Recording.__torch_dispatch__ = _Recording.see  # type: ignore[method-assign]


def _converted(function: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as C takes them, so that replays need not convert them."""
    kinds = getattr(function, "argtypes", None) or ()
    if len(kinds) != len(arguments):
        return arguments
    return tuple(
        argument if isinstance(argument, kind) else kind(argument)
        for kind, argument in zip(kinds, arguments, strict=True)
    )


def _again(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Callable[[], Any]:
    """Works `result` out anew, in the memory that it has."""
    if operator in _COPIES:
        return lambda: result.copy_(args[0])
    if (variant := out_variant(operator)) is not None:
        by, names = variant
        given = kwargs | dict(zip(names, [result] if isinstance(result, torch.Tensor) else result, strict=True))
        return partial(quickest(by, args, given), *args, **given)
    again = partial(quickest(operator, args, kwargs), *args, **kwargs)
    return lambda: _overwrite(tensors_in(result), tensors_in(again()))


def _address(tensor: torch.Tensor) -> int | None:
    """Where its memory begins; None for weights that a library has packed, of which there are no views."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else None


def _overwrite(old: Iterable[torch.Tensor], new: Iterable[torch.Tensor]) -> None:
    for one, other in zip(old, new, strict=True):
        one.copy_(other)
