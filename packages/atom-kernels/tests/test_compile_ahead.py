"""Kernels that are compiled before they are launched: side by side, once each, with nothing written."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atom_kernels.platform import Facts, Platform, platform_from_facts, use_platform
from atom_kernels.triton.compile_ahead import FilledTensors, compile_ahead

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
_SUPPORT = Path(__file__).parents[3] / "tests/support"

# Two layers of one model: each norm is launched by both, as different kernels for the width of its rows. On a machine
# without a GPU kernels are compiled, and to launch one fails.
_TWO_LAYERS = """
import threading
import torch
import triton
from triton.runtime import driver
from atom_kernels.triton.compile_ahead import compile_ahead
from atom_kernels.norm.triton_backend import rms_norm_by_triton
from atom_kernels.platform import use_platform
import gpu_launches

def norm(width):
    return rms_norm_by_triton(torch.ones(2, width), torch.ones(width), 1e-6, 0.0)

def launch():
    try:
        norm(64)
    except Exception:
        tried.append(threading.current_thread().name)

def step():
    found.extend(norm(width) for _ in range(2) for width in (64, 128))
    other = threading.Thread(target=launch, name="other")
    other.start()
    other.join()

compiled, tried, found = [], [], []
triton.knobs.compilation.listener = lambda *, src, **rest: compiled.append(threading.current_thread().name)
driver.set_active(gpu_launches._TargetOnly(gpu_launches._TARGETS["sm_90"]))
torch.cuda.current_device, torch.cuda.set_device = lambda: 0, lambda device: None
with use_platform(gpu_launches._platform("sm_90")):
    compile_ahead(step)
    launch()
print("compiled by", *(name.rpartition("_")[0] for name in compiled))
print("launched by", *tried)
print("written", sum(int(tensor.count_nonzero()) for tensor in found))
"""


@needs_triton
def test_each_kernel_is_compiled_once_and_only_launches_of_this_thread_are_left_out():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(_SUPPORT), *filter(None, [environment.get("PYTHONPATH")])])
    run = subprocess.run(
        [sys.executable, "-c", _TWO_LAYERS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-4000:]
    assert run.stdout.splitlines() == [
        "compiled by compile_ahead compile_ahead", "launched by other MainThread", "written 0",
    ]  # fmt: skip


def test_tensors_that_nobody_fills_are_zeros():
    with FilledTensors():
        made = [torch.empty(1000), torch.ones(3).new_empty(1000), torch.empty_like(torch.ones(1000))]
        made.append(torch.empty_strided((10, 100), (100, 1)))
        kept = torch.full((3,), 7.0)
    assert all((tensor == 0).all() for tensor in made)
    assert (kept == 7).all()


def test_nothing_happens_where_triton_compiles_nothing():
    called: list[int] = []
    for platform in (platform_from_facts(Facts()), Platform.rocm("gfx942")):
        with use_platform(platform):
            compile_ahead(lambda: called.append(1))
    assert called == []


@needs_triton
@pytest.mark.gpu
def test_work_is_compiled_and_loaded_but_not_launched():
    import triton

    from atom_kernels.norm.triton_backend import rms_norm_by_triton

    x, weight, found, compiled = torch.ones(3, 208, device="cuda"), torch.ones(208, device="cuda"), [], []
    triton.knobs.compilation.listener = lambda *, src, **rest: compiled.append(src.name)
    try:
        compile_ahead(lambda: found.append(rms_norm_by_triton(x, weight, 1e-6, 0.0)))
        assert (found[0] == 0).all()
        assert len(compiled) == 1
        torch.testing.assert_close(rms_norm_by_triton(x, weight, 1e-6, 0.0), x)
        assert len(compiled) == 1
    finally:
        triton.knobs.compilation.listener = None


@pytest.mark.gpu
def test_work_that_fails_is_left_to_those_who_need_it():
    def fail() -> None:
        raise ValueError("no such step")

    compile_ahead(fail)
