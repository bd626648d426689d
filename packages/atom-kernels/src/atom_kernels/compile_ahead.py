"""Compiles the Triton kernels of a step side by side before it runs, instead of one by one while it does.

A step is called once with its launches left out: each only tells what is to be compiled, which threads do meanwhile
(`triton.AsyncCompileMode`). Where Triton's cache has all, that costs a call of the step.
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

from atom_kernels.launch import launches_go_to
from atom_kernels.platform import detect_platform
from atom_kernels.settings import triton_interpret

logger = logging.getLogger(__name__)

# Of engines that start in threads beside each other.
_one_at_a_time = threading.Lock()

_UNFILLED = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


def compile_ahead(work: Callable[[], Any]) -> None:
    """Make ready whatever kernels of Triton `work` launches, without launching them; returns when all are.

    What else it does happens, on zeros where kernels would have written: it must not care for values, nor write what
    anybody needs. Does nothing where there is no NVIDIA GPU. Failures are left for the launch that meets them again.

    Args:
        work: called once, in this thread.
    """
    platform = detect_platform()
    if platform.vendor != "nvidia" or "triton" not in platform.backends or triton_interpret():
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
            except Exception as error:  # the step itself will tell, if it fails as well
                logger.debug("not all kernels were compiled ahead: %s: %s", type(error).__name__, error)
        list(threads.map(_load, [found.kernel for found in compiling.future_kernels.values()]))


def _prepare(kernel: Any, grid: Any, *arguments: Any, **options: Any) -> None:
    """What a launch does, up to the launch."""
    from triton import FutureKernel

    found = kernel.run(*arguments, grid=grid, warmup=True, **options)
    if isinstance(found, FutureKernel):
        # Known at once: to find out again what it is takes as long as a launch in each of a model's layers.
        found.finalize_compile(found)


class FilledTensors(TorchFunctionMode):
    """Zeros in tensors that are made empty: kernels that are left out fill none, and others take some for indices."""

    # Not a dispatch mode: those import torch's compiler, for seconds.
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if getattr(func, "__name__", None) in _UNFILLED else made


def _load(kernel: Any) -> None:
    """Onto the device, and compile what launches it: else its first launch does."""
    try:
        _ = kernel and kernel.run
    except Exception as error:  # too large for the device, which the launch will tell
        logger.debug("not loaded ahead: %s", error)
