"""What launches of Triton kernels share: programmatic dependent launch.

A kernel that is launched this way starts while the one before it in the stream is still running. It may read weights at
once, since no kernel of a step writes them. It may also read what kernels that are launched plainly wrote before the
step's first layer (lengths, block tables, positions, slots, and who decodes what): no kernel starts before a plain one
has ended. Before it touches anything else it calls `wait_for_inputs`.
"""

from __future__ import annotations

import functools
from typing import Any

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from atom_kernels.platform import detect_platform


@functools.cache
def has_dependent_launch() -> bool:
    """Whether this GPU overlaps the start of a kernel with the end of the one before (NVIDIA from Hopper on)."""
    platform = detect_platform()
    return platform.vendor == "nvidia" and int(platform.arch.removeprefix("sm_")) >= 90


def dependent_launch() -> dict[str, Any]:
    """Options of a launch whose kernel takes `DEPENDENT` and calls `wait_for_inputs` where that is set."""
    return {"DEPENDENT": True, "launch_pdl": True} if has_dependent_launch() else {"DEPENDENT": False}


@triton.jit
def wait_for_inputs(DEPENDENT: tl.constexpr):
    """Lets the next kernel start, and waits until all before this one are done and what they wrote can be read."""
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch_to_l2(pointers, mask):
    """Asks for the 128 bytes around each pointer, without waiting for them."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [pointers.to(tl.uint64), mask.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
