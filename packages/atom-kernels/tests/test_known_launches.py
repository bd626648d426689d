"""Launches that Triton has seen before go past it: to the kernel that it would choose, with all of its arguments."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

from atom_kernels.triton.known_launches import KnownLaunches, kinds_of, known_launches

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
NUMBERS = torch.zeros(64)


class Kernel:
    """A kernel ``(x, count, scale, BLOCK, EVEN)`` with two constants; it notes what runs, and who launched it."""

    arg_names = ("x", "count", "scale", "BLOCK", "EVEN")

    def __init__(self) -> None:
        self.pre_run_hooks, self.constexprs, self.function, self.packed_metadata = [], [3, 4], "function", "metadata"
        self.by_triton, self.at_once = [], []

    def run(self, *arguments, **options):
        self.by_triton.append((arguments, options))
        return SimpleNamespace(run=self._launched, function="function", packed_metadata="metadata")

    def _launched(self, *arguments) -> None:
        self.at_once.append(arguments)


def make_launches(hook=None) -> KnownLaunches:
    driver = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 77)
    return KnownLaunches(driver, SimpleNamespace(launch_enter_hook=hook))


def counts_of(kernel: Kernel) -> tuple[int, int]:
    return len(kernel.by_triton), len(kernel.at_once)


def test_the_second_launch_of_a_kind_goes_past_triton_with_its_own_values():
    launches, kernel = make_launches(), Kernel()
    launches.run(kernel, (5,), (NUMBERS, 32, 0.5), {"EVEN": True, "BLOCK": 8, "num_warps": 2})
    launches.run(kernel, (6, 7), (NUMBERS[4:], 48, 0.25), {"EVEN": True, "BLOCK": 8, "num_warps": 2})
    assert kernel.by_triton == [
        ((NUMBERS, 32, 0.5), {"grid": (5,), "warmup": False, "EVEN": True, "BLOCK": 8, "num_warps": 2})
    ]
    [launched] = kernel.at_once
    assert launched[:9] == (6, 7, 1, 77, "function", "metadata", None, None, None)
    assert launched[9].data_ptr() == NUMBERS[4:].data_ptr()
    assert launched[10:] == (48, 0.25, 8, True)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((NUMBERS[1:], 32, 0.5), {"BLOCK": 8}),
        ((NUMBERS.int(), 32, 0.5), {"BLOCK": 8}),
        ((NUMBERS, 33, 0.5), {"BLOCK": 8}),
        ((NUMBERS, 1, 0.5), {"BLOCK": 8}),
        ((NUMBERS, 1 << 40, 0.5), {"BLOCK": 8}),
        ((None, 32, 0.5), {"BLOCK": 8}),
        ((NUMBERS, 32, 0.5), {"BLOCK": 16}),
        ((NUMBERS, 32, 0.5), {"BLOCK": 8, "num_warps": 2}),
    ],
)
def test_what_triton_compiles_apart_is_given_to_triton_first(arguments, options):
    launches, kernel = make_launches(), Kernel()
    launches.run(kernel, (1,), (NUMBERS, 32, 0.5), {"EVEN": True, "BLOCK": 8})
    launches.run(kernel, (1,), arguments, {"EVEN": True} | options)
    assert counts_of(kernel) == (2, 0)


def test_constants_among_the_arguments_hooks_and_unknown_types_are_left_to_triton():
    options = {"BLOCK": 8, "EVEN": True}
    watched, early, constant, strange = (Kernel() for _ in range(4))
    early.pre_run_hooks.append(print)
    constant.constexprs = [1, 3, 4]
    for _ in range(2):
        make_launches(hook=print).run(watched, (1,), (NUMBERS, 32, 0.5), options)
        launches = make_launches()
        for kernel, arguments in ((early, (NUMBERS, 32, 0.5)), (constant, (NUMBERS, 32, 0.5)), (strange, ("x", 3, 1))):
            launches.run(kernel, (1,), arguments, options)
            launches.run(kernel, (1,), arguments, options)
    assert [counts_of(kernel) for kernel in (watched, early, constant, strange)] == [(2, 0), (4, 0), (4, 0), (4, 0)]


@needs_triton
def test_arguments_of_equal_kinds_are_alike_to_triton():
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as DescriptorOfGluon
    from triton.tools.tensor_descriptor import TensorDescriptor

    integers = [
        0,
        1,
        2,
        15,
        16,
        17,
        48,
        -1,
        -16,
        -(1 << 31),
        (1 << 31) - 1,
        1 << 31,
        (1 << 31) + 1,
        -(1 << 40),
        1 << 62,
    ]
    tensors = [NUMBERS[first:].to(dtype) for first in (0, 1, 4) for dtype in (torch.float32, torch.int8, torch.bool)]
    values = [*integers, *tensors, NUMBERS[1:], NUMBERS[3:], NUMBERS[4:], None, True, False, 0.0, 1.0, 0.1]
    values += [
        TensorDescriptor(NUMBERS[first:].view(-1, 4), [8, 4], [4, 1], [size, 4]) for first in (0, 4) for size in (4, 8)
    ]
    for width in (32, 64):
        layout = NVMMASharedLayout(swizzle_byte_width=width, element_bitwidth=32, rank=2)
        values += [DescriptorOfGluon(NUMBERS.view(rows, -1), [4, 4], [4, 1], [4, 16], layout) for rows in (4, 8)]
    by_kind: dict = {}
    for value in values:
        by_kind.setdefault(kinds_of((value,)), set()).add(native_specialize_impl(CUDABackend, value, False, True, True))
    assert all(len(found) == 1 for found in by_kind.values())
    assert len(by_kind) > 14


def test_a_machine_without_an_nvidia_gpu_has_none_and_needs_no_triton(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert known_launches.__wrapped__() is None  # not the answer that is kept for this process
