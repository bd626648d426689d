"""The gated activations in Triton: elementwise, float32 inside, rounded once."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton_support import wait_for_inputs


@triton.jit
def gated_activation_kernel(
    x_ptr, out_ptr, alpha, limit,
    SIZE: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """KIND: "silu", "gelu" (erf) or "gelu_tanh" of the first half times the second; "swiglu_oai" of pairs."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < SIZE
    gates = x_ptr + row * 2 * SIZE
    wait_for_inputs(DEPENDENT)
    if KIND == "swiglu_oai":
        gate = tl.load(gates + 2 * columns, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gates + 2 * columns + 1, mask=inside, other=0.0).to(tl.float32)
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
        active = gate / (1.0 + tl.exp(-alpha * gate))
    else:
        gate = tl.load(gates + columns, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(gates + SIZE + columns, mask=inside, other=0.0).to(tl.float32)
        if KIND == "silu":
            active = gate / (1.0 + tl.exp(-gate))
        elif KIND == "gelu":
            active = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
        else:
            # tanh(u) = 2 sigmoid(2u) - 1, so that gelu becomes gate * sigmoid(2u).
            u = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
            active = gate / (1.0 + tl.exp(-2.0 * u))
    tl.store(out_ptr + row * SIZE + columns, (active * up).to(out_ptr.dtype.element_ty), mask=inside)
