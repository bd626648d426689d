"""Compiles the Triton kernels of a step side by side before it runs, instead of one by one while it does.

A step is called once with its launches left out: each one only names its kernel, which threads compile meanwhile
(`triton.AsyncCompileMode`). Where Triton's cache has all kernels, this costs one call of the step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from atom_kernels.platform import detect_platform
from atom_kernels.settings import triton_interpret
from atom_kernels.triton.launch import launches_go_to

logger = logging.getLogger(__name__)

# Engines may start in threads beside each other: one at a time compiles.
_one_at_a_time = threading.Lock()

_UNFILLED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


def compile_ahead(work: Callable[[], Any]) -> None:
    """Compile the Triton kernels that `work` launches, without launching them; returns when all are ready.

    The rest of `work` runs, on zeros where kernels would have written: it must not depend on values, nor overwrite what
    is needed later. Does nothing where there is no NVIDIA GPU. Failures are left for the launch that meets them again.

    Args:
        work: called once, in this thread.
    """
    platform = detect_platform()
    if platform.vendor != "nvidia" or platform.why_not("triton") or triton_interpret():
        return
    try:
        from triton import AsyncCompileMode
    except ImportError:  # an older Triton compiles at the launch
        return
    # A thread without a device of its own cannot load what it compiled.
    take_device = partial(torch.cuda.set_device, torch.cuda.current_device())
    with _one_at_a_time, ThreadPoolExecutor(thread_name_prefix="compile_ahead", initializer=take_device) as threads:
        with AsyncCompileMode(threads, ignore_errors=True) as compiling, launches_go_to(_prepare), FilledTensors():
            try:
                work()
            except Exception as error:  # the step itself reports it, if it fails there too
                logger.debug("not all kernels were compiled ahead: %s: %s", type(error).__name__, error)
        list(threads.map(_load, [found.kernel for found in compiling.future_kernels.values()]))


def _prepare(kernel: Any, grid: Any, *arguments: Any, **options: Any) -> None:
    """What a launch does, up to the launch."""
    from triton import FutureKernel

    found = kernel.run(*arguments, grid=grid, warmup=True, **options)
    if isinstance(found, FutureKernel):
        # The result is settled at once: finding it again in each of a model's layers takes as long as a launch.
        found.finalize_compile(found)


class FilledTensors(TorchFunctionMode):
    """Fills empty tensors with zeros: kernels that are left out write nothing, and torch takes values for indices."""

    # Not a dispatch mode: those import torch's compiler, for seconds.
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if getattr(func, "__name__", None) in _UNFILLED else made


def _load(kernel: Any) -> None:
    """Load a kernel onto the device and compile its launcher, which else its first launch would do."""
    try:
        _ = kernel and kernel.run
    except Exception as error:  # too large for the device, which its launch will report
        logger.debug("not loaded ahead: %s", error)
