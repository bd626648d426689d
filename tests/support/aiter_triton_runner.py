"""Runs AITER's own Triton kernels, from the sources of its wheel, in Triton's interpreter: a script of its own process.

    TRITON_INTERPRET=1 python aiter_triton_runner.py FOLDER CALLS RESULTS

FOLDER holds the unpacked wheel, CALLS what `call` lists wrote with ``torch.save``; RESULTS gets the arguments of each
call as the kernel left them, and what it returned.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

COMPUTE_UNITS = 304


class GpuThatIsNotThere:
    """What the wrappers ask Triton's driver before they launch."""

    def get_current_target(self) -> SimpleNamespace:
        """An MI300X."""
        return SimpleNamespace(arch="gfx942", backend="hip", warp_size=64)

    def get_current_device(self) -> int:
        """The first."""
        return 0


def package_without_its_init(name: str, folder: Path) -> ModuleType:
    """A package whose modules can be imported although its `__init__` cannot (it compiles C++)."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder.joinpath(*name.split(".")))]
    sys.modules[name] = module
    return module


def prepare(folder: Path) -> None:
    """Let ``import aiter.ops.triton...`` find the wheel's modules."""
    import triton

    from triton_interpreter import what_to_ignore

    what_to_ignore()  # mends the interpreter's loops
    triton.runtime.driver.set_active(GpuThatIsNotThere())
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=COMPUTE_UNITS)
    for name in ("aiter", "aiter.ops", "aiter.ops.triton"):
        package_without_its_init(name, folder)


def run(call: dict[str, Any]) -> dict[str, Any]:
    """Call ``module.function(**arguments)``."""
    function = getattr(importlib.import_module(call["module"]), call["function"])
    return {"returned": function(**call["arguments"]), "arguments": call["arguments"]}


def main(folder: str, calls: str, results: str) -> None:
    """Run every call."""
    prepare(Path(folder))
    torch.save([run(call) for call in torch.load(calls, weights_only=True)], results)


if __name__ == "__main__":
    main(*sys.argv[1:])
