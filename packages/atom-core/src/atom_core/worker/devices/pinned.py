"""Memory of the host that a GPU reads and writes beside what it computes, and that is kept from step to step.

To ask for such memory, and for an event behind each copy, takes the host longer than the copy itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from atom_core.worker.devices.upload import send

# Words of a step that travel in kept memory, and steps that follow each other before one looks whether they are done.
_WORDS, _STEPS = 1 << 16, 8
# Room for results grows by whole blocks of so many.
_LEAST_RESULTS = 1024


class Pinned:
    """Numbers in pinned memory, and the event behind their last copies; plain memory where nothing is launched.

    Attributes:
        memory: ``[size]``.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        is_gpu = device.type == "cuda"
        self.memory = torch.empty(size, dtype=dtype, pin_memory=is_gpu)
        self._copied = torch.cuda.Event() if is_gpu else None

    @cached_property
    def array(self) -> np.ndarray:
        """The memory for numpy."""
        return self.memory.numpy()

    def launched(self) -> None:
        """All copies to or from the memory were launched."""
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> None:
        """Wait until they are done; raises what the device failed with."""
        if self._copied is not None:
            self._copied.synchronize()


class Uploads:
    """Int32 words of the host, on their way to one place on the device: each step's overwrite those of the one before.

    Steps take the memory of one half in turn, and then that of the other: an event for each would take longer.

    Args:
        device: where to.
        num_words: the room for those of a step; more travel as any tensor does.
    """

    def __init__(self, device: torch.device, num_words: int = _WORDS) -> None:
        self._device, self._place = device, torch.zeros(num_words, dtype=torch.int32, device=device)
        self._half, self._other = (Pinned(_STEPS * num_words, torch.int32, device) for _ in range(2))
        self._step = 0

    def send(self, *arrays: np.ndarray) -> torch.Tensor:
        """The words of all arrays on the device, one behind the other; theirs until the next call."""
        num_words, most = sum(map(len, arrays)), len(self._place)
        if num_words > most:
            return send(torch.from_numpy(np.concatenate(arrays)), self._device)
        if self._step == _STEPS:
            self._half.launched()
            self._half, self._other, self._step = self._other, self._half, 0
            self._half.wait()
        mine = slice(self._step * most, self._step * most + num_words)
        self._step += 1
        np.concatenate(arrays, out=self._half.array[mine])
        sent = self._place[:num_words]
        sent.copy_(self._half.memory[mine], non_blocking=True)
        return sent


class Results:
    """What the device computed, on its way to the host, in memory that serves again once it was read."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[Pinned] = []

    def fetch(self, results: torch.Tensor) -> Callable[[], list[Any]]:
        """See `WorkerDevice.fetch`; what it returns is called once. Memory for ids is kept, that for vectors is not."""
        if results.dtype is not torch.int64 or results.dim() != 1:
            pinned = Pinned(results.numel(), results.dtype, self._device)
            on_host, is_kept = pinned.memory.view(results.shape), False
        else:
            pinned = self._room_for(len(results))
            on_host, is_kept = pinned.memory[: len(results)], True
        on_host.copy_(results, non_blocking=True)
        pinned.launched()

        def read() -> list[Any]:
            pinned.wait()
            found = on_host.tolist()
            if is_kept:
                self._free.append(pinned)
            return found

        return read

    def _room_for(self, size: int) -> Pinned:
        # Taken before it is looked at: whoever reads gives memory back meanwhile.
        kept = self._free.pop() if self._free else None
        if kept is not None and len(kept.memory) >= size:
            return kept
        return Pinned(-(-size // _LEAST_RESULTS) * _LEAST_RESULTS, torch.int64, self._device)
