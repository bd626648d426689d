"""Launches that Triton has seen before, without what it takes to find that out.

At each launch Triton binds and looks at every argument, prints the options and reads its settings, which takes a slow
host tens of microseconds. A prompt through a mixture has 600 launches, and GPUs wait for them. What Triton compiled for
arguments of a kind is kept here, and is launched at once for others of the same kind.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

# Their compiled kernels are launched alike: with the grid, stream, function, metadata, hooks and all arguments.
_VERSIONS = ("3.4.", "3.5.", "3.6.")


class KnownLaunches:
    """Launches on an NVIDIA GPU.

    Args:
        driver: Triton's, for the current device and stream.
        settings: Triton's of its runtime, for the hooks of profilers.
    """

    def __init__(self, driver: Any, settings: Any) -> None:
        self._driver, self._settings = driver, settings
        # (kernel, device, options, kinds of arguments) -> (what was compiled, its arguments that options give).
        self._known: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}

    def run(self, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        """``kernel[grid](*arguments, **options)``."""
        kinds = kinds_of(arguments)
        is_given_constants = any(place < len(arguments) for place in kernel.constexprs[:1])
        if kinds is None or is_given_constants or self._is_watched(kernel):
            kernel.run(*arguments, grid=grid, warmup=False, **options)
            return
        device = self._driver.get_current_device()
        key = (kernel, device, tuple(options.items()), kinds)
        known = self._known.get(key)
        if known is None:
            compiled = kernel.run(*arguments, grid=grid, warmup=False, **options)
            if (others := _by_name(kernel, len(arguments), options)) is not None:
                self._known[key] = (compiled, others)
            return
        compiled, others = known
        x, y, z = (*grid, 1, 1)[:3]
        stream, function = self._driver.get_current_stream(device), compiled.function
        compiled.run(x, y, z, stream, function, compiled.packed_metadata, None, None, None, *arguments, *others)

    def _is_watched(self, kernel: Any) -> bool:
        """Whether a profiler wants to be called at launches, or somebody before the kernel runs."""
        hook = self._settings.launch_enter_hook
        return bool(getattr(hook, "calls", hook) or kernel.pre_run_hooks)


@functools.cache
def known_launches() -> KnownLaunches | None:
    """None where Triton interprets, is of a version that we do not know, or has no GPU of NVIDIA's to launch on."""
    from atom_kernels.settings import triton_interpret

    if triton_interpret() or torch.version.hip is not None or not torch.cuda.is_available():
        return None
    import triton  # torch for CPUs comes without it

    if not triton.__version__.startswith(_VERSIONS):
        return None
    from triton import knobs
    from triton.runtime import driver

    return KnownLaunches(driver.active, knobs.runtime)


def kinds_of(arguments: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What Triton compiles apart: equal kinds have one kernel. None if an argument is of a type not known here.

    Tensors differ by dtype and by whether they begin at a multiple of 16 bytes; integers by whether they are 1, a
    multiple of 16, and fit 32 bits; descriptors of tensors by what a copy takes and how it lies in shared memory.
    """
    kinds: list[Any] = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            kinds += (argument.dtype, argument.data_ptr() % 16 == 0)
        elif argument is None:
            kinds.append(None)
        elif isinstance(argument, bool):
            kinds += (bool, argument)
        elif isinstance(argument, int):
            kinds += ("one" if argument == 1 else argument % 16 == 0, -(1 << 31) <= argument < 1 << 31)
            if argument >= 1 << 63:
                return None
        elif isinstance(argument, float):
            kinds.append(float)
        elif (block := getattr(argument, "block_shape", None)) is not None:
            kinds += (argument.base.dtype, tuple(block), getattr(argument, "layout", None))
        else:
            return None
    return tuple(kinds)


def _by_name(kernel: Any, num_given: int, options: dict[str, Any]) -> tuple[Any, ...] | None:
    """The arguments after the first, which options give by name; None where they cannot be kept."""
    names = kernel.arg_names[num_given:]
    if any(name not in options or isinstance(options[name], torch.Tensor) for name in names):
        return None
    return tuple(options[name] for name in names)
