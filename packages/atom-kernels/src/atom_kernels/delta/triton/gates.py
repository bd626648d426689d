"""Decays and strengths of the gated delta rule, as its Triton kernels make them of what a step gives."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    """``log(1 + exp(x))``: with u = exp(-|x|), log(1 + u) is 2 atanh(u / (2 + u)), exact for small u too."""
    u = tl.exp(-tl.abs(x))
    s = u / (u + 2.0)
    s2 = s * s
    p = 2.0 / 15 * s2 + 2.0 / 13
    p = p * s2 + 2.0 / 11
    p = p * s2 + 2.0 / 9
    p = p * s2 + 2.0 / 7
    p = p * s2 + 2.0 / 5
    p = p * s2 + 2.0 / 3
    p = p * s2 + 2.0
    return tl.maximum(x, 0.0) + p * s


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))
