"""The activations in Triton: elementwise, float32 inside, rounded once. Kernels of experts call `gated` too."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """An activation of one value, in float32."""
    if ACTIVATION == "silu":
        return x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # tanh(u) = 2 sigmoid(2u) - 1, so that gelu becomes x * sigmoid(2u).
        u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        return x / (1.0 + tl.exp(-2.0 * u))
    elif ACTIVATION == "quick_gelu":
        return x / (1.0 + tl.exp(-1.702 * x))
    else:
        # tl.maximum would give 0 for NaN, which torch's relu keeps.
        tl.static_assert(ACTIVATION == "relu" or ACTIVATION == "relu2", "not an activation of one value")
        x = tl.where(x < 0.0, 0.0, x)
        return x * x if ACTIVATION == "relu2" else x


@triton.jit
def gated(gate, up, alpha, limit, ACTIVATION: tl.constexpr):
    """The activation of a gate times its partner, in float32."""
    if ACTIVATION == "swiglu_oai":
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
        return gate / (1.0 + tl.exp(-alpha * gate)) * up
    else:
        return activated(gate, ACTIVATION) * up


@triton.jit
def activation_kernel(
    x_ptr, out_ptr, count, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """`activated` of `count` values that lie one after another."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    wait_for_inputs(DEPENDENT)
    x = tl.load(x_ptr + places, mask=places < count, other=0.0).to(tl.float32)
    tl.store(out_ptr + places, activated(x, ACTIVATION).to(out_ptr.dtype.element_ty), mask=places < count)


@triton.jit
def gated_activation_kernel(
    x_ptr, out_ptr, alpha, limit,
    SIZE: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Gate is the first half of a row and up the second; for swiglu_oai they take turns."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gates = x_ptr + row * 2 * SIZE
    wait_for_inputs(DEPENDENT)
    if ACTIVATION == "swiglu_oai":
        gate = tl.load(gates + 2 * columns, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gates + 2 * columns + 1, mask=inside, other=0.0).to(tl.float32)
    else:
        gate = tl.load(gates + columns, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gates + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
    out = gated(gate, up, alpha, limit, ACTIVATION)
    tl.store(out_ptr + row * SIZE + columns, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def sigmoid_gate_kernel(
    x_ptr, gate_ptr, base_ptr, out_ptr, row_stride, group_stride,
    SIZE: tl.constexpr, COLUMNS: tl.constexpr, ONE_GATE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Programs ``[rows, blocks of columns]``; the gates of rows and of groups of SIZE columns are so far apart."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < COLUMNS
    gates = columns // SIZE * group_stride
    if not ONE_GATE:
        gates += columns % SIZE
    wait_for_inputs(DEPENDENT)
    x = tl.load(x_ptr + row * COLUMNS + columns, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * row_stride + gates, mask=inside, other=0.0).to(tl.float32)
    out = x / (1.0 + tl.exp(-gate))
    if base_ptr is not None:
        out += tl.load(base_ptr + row * COLUMNS + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * COLUMNS + columns, out.to(out_ptr.dtype.element_ty), mask=inside)
