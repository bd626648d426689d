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

import numpy
import torch

COMPUTE_UNITS = 304


class GpuThatIsNotThere:
    """What the wrappers ask Triton's driver before they launch; `arch` is that of an MI300X or an MI355X."""

    arch = "gfx942"

    def get_current_target(self) -> SimpleNamespace:
        """A GPU of this architecture."""
        return SimpleNamespace(arch=self.arch, backend="hip", warp_size=64)

    def get_current_device(self) -> int:
        """The first."""
        return 0


def package_without_its_init(name: str, folder: Path) -> ModuleType:
    """A package whose modules can be imported although its `__init__` cannot (it compiles C++)."""
    module = types.ModuleType(name)
    module.__path__ = [str(folder.joinpath(*name.split(".")))]
    sys.modules[name] = module
    return module


def add_what_the_interpreter_lacks() -> None:
    """The method `floor` of tensors, and products of MXFP4 whose codes lie along the sum."""
    from triton import language
    from triton.runtime.interpreter import TensorHandle

    def numbers(codes: numpy.ndarray, exponents: Any) -> numpy.ndarray:
        sizes = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=numpy.float32)
        values = numpy.stack((codes & 15, codes >> 4), -1).reshape(len(codes), -1)
        scale = numpy.exp2(exponents.handle.data.astype(numpy.float32) - 127).repeat(32, -1)
        return numpy.where(values > 7, -1, 1) * sizes[values % 8] * scale

    def dot_scaled(lhs: Any, lhs_scale: Any, _lhs: str, rhs: Any, rhs_scale: Any, _rhs: str) -> Any:
        a, b = numbers(lhs.handle.data, lhs_scale), numbers(rhs.handle.data.T, rhs_scale)
        product = (a @ b.T).astype(numpy.float32)
        shape = language.block_type(language.float32, list(product.shape))
        return language.tensor(TensorHandle(product, language.float32), shape)

    language.dot_scaled = dot_scaled
    setattr(language.tensor, "floor", lambda tensor: language.floor(tensor))  # noqa: B010


def prepare(folder: Path) -> None:
    """Let ``import aiter.ops.triton...`` find the wheel's modules."""
    import triton

    from triton_interpreter import what_to_ignore

    what_to_ignore()  # mends the interpreter's loops
    add_what_the_interpreter_lacks()
    triton.runtime.driver.set_active(GpuThatIsNotThere())
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(multi_processor_count=COMPUTE_UNITS)
    for name in ("aiter", "aiter.ops", "aiter.ops.triton"):
        package_without_its_init(name, folder)


def run(call: dict[str, Any]) -> dict[str, Any]:
    """Call ``module.function(**arguments)``."""
    GpuThatIsNotThere.arch = call["arch"]
    function = getattr(importlib.import_module(call["module"]), call["function"])
    return {"returned": function(**call["arguments"]), "arguments": call["arguments"]}


def main(folder: str, calls: str, results: str) -> None:
    """Run every call."""
    prepare(Path(folder))
    torch.save([run(call) for call in torch.load(calls, weights_only=True)], results)


if __name__ == "__main__":
    main(*sys.argv[1:])
