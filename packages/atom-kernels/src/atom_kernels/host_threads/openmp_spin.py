"""How long threads of GNU's OpenMP spin before they sleep, changed while the program runs.

A thread of the pool spins for milliseconds while it waits for the others. That is quick where every thread has a core.
Where other programs want the cores too, a spinning thread burns the time slice that the thread it waits for needs.

The runtime reads ``GOMP_SPINCOUNT`` once, when it is loaded, and has no function to change it. But it counts threads
of all pools: while there are more than cores, each spins for 100 rounds only (GNU libgomp manual, "GOMP_SPINCOUNT").
So a pool that does nothing shortens the spinning of all others, for as long as it exists.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache

from atom_kernels.host_threads.openmp import torch_openmp


class OpenmpSpin:
    """The spinning of this process's OpenMP threads: long, as the runtime has it, or short."""

    def __init__(self, openmp: ctypes.CDLL) -> None:
        self._openmp = openmp
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_short(self) -> bool:
        """Whether waiting threads go to sleep almost at once."""
        return self._thread is not None

    def shorten(self) -> None:
        """Let threads sleep almost at once, until `lengthen`."""
        if self._thread is None:
            ready = threading.Event()
            self._ended.clear()
            self._thread = threading.Thread(target=self._park, args=(ready,), name="openmp-parked", daemon=True)
            self._thread.start()
            ready.wait()

    def lengthen(self) -> None:
        """Let threads spin again as the runtime has it."""
        if self._thread is not None:
            self._ended.set()
            self._thread.join()
            self._thread = None

    def _park(self, ready: threading.Event) -> None:
        # More threads than cores, whatever other pools there are. They run a function that does nothing, and sleep.
        count = self._openmp.omp_get_num_procs() + 1
        nothing = ctypes.cast(self._openmp.omp_get_thread_num, ctypes.c_void_p)
        self._openmp.GOMP_parallel(nothing, None, ctypes.c_uint(count), ctypes.c_uint(0))
        ready.set()
        self._ended.wait()  # the pool belongs to this thread and ends with it


@cache
def openmp_spin() -> OpenmpSpin | None:
    """The `OpenmpSpin` of this process; None where torch's OpenMP is not GNU's: no other runtime has these rules."""
    openmp = torch_openmp()
    # LLVM's and Intel's runtimes have GNU's entry points, too, and a function of their own besides.
    if openmp is None or not hasattr(openmp, "GOMP_parallel") or hasattr(openmp, "kmp_set_blocktime"):
        return None
    return OpenmpSpin(openmp)
