"""A GPU's copy engine carries pieces of long sums to another GPU, by calls of NVIDIA's driver.

A prompt has hundreds of pieces. Each takes four calls, which cost the host less than torch's copies and streams.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

_CALLS = {
    "cuEventCreate": (ctypes.c_void_p, ctypes.c_uint),
    "cuEventRecord": (ctypes.c_void_p, ctypes.c_void_p),
    "cuStreamWaitEvent": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint),
    "cuMemcpyAsync": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p),
    "cuStreamWriteValue32_v2": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint),
}
_WITHOUT_TIMES = 2


class CopyEngine:
    """`Carrier` to the slots and the numbers of the rank on another GPU.

    Args:
        theirs: uint8 ``[slots, bytes]``, as this process sees them.
        their_numbers: int32 ``[slots]``, likewise.

    Raises:
        OSError, AttributeError: the driver is not there, or lacks a call.
    """

    def __init__(self, theirs: torch.Tensor, their_numbers: torch.Tensor) -> None:
        self._slots, self._slot_bytes = theirs.data_ptr(), theirs.shape[1]
        self._numbers, self._device = their_numbers.data_ptr(), theirs.device
        self._stream = torch.cuda.Stream(self._device)
        self._computed, self._copied = _event(), _event()

    def carry(self, part: torch.Tensor, slot: int, number: int) -> None:
        """See `Carrier`."""
        beside = self._stream.cuda_stream
        self._order(self._computed, self._kernels(), beside)
        _call("cuMemcpyAsync", self._slots + slot * self._slot_bytes, part.data_ptr(), part.nbytes, beside)
        # It waits until all that was copied before can be seen by every GPU.
        _call("cuStreamWriteValue32_v2", beside, self._numbers + 4 * slot, number, 0)

    def settle(self) -> None:
        """See `Carrier`."""
        self._order(self._copied, self._stream.cuda_stream, self._kernels())

    def _kernels(self) -> int:
        # `torch.cuda.current_stream` takes ten times as long: it makes an object of Python.
        return torch._C._cuda_getCurrentRawStream(self._device.index)

    def _order(self, event: ctypes.c_void_p, first: int, then: int) -> None:
        _call("cuEventRecord", event, first)
        _call("cuStreamWaitEvent", then, event, 0)


@functools.cache
def _driver() -> dict[str, Any]:
    # Calls that keep the interpreter to themselves: they return at once, and taking it back costs more than they do.
    library = ctypes.PyDLL("libcuda.so.1")
    calls = {name: getattr(library, name) for name in _CALLS}
    for name, types in _CALLS.items():
        calls[name].argtypes = types
    return calls


def _call(name: str, *arguments: Any) -> None:
    call = _driver()[name]
    if error := call(*arguments):
        raise RuntimeError(f"{name} of the CUDA driver failed with error {error}")


def _event() -> ctypes.c_void_p:
    event = ctypes.c_void_p()
    _call("cuEventCreate", ctypes.byref(event), _WITHOUT_TIMES)
    return event
