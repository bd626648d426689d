"""LayerNorm."""

from torch import Tensor

from tests.aiter_emulator.semantics import norm

from ..jit.core import compile_ops


@compile_ops("module_norm")
def layernorm2d_fwd(
    input: Tensor,
    weight: Tensor,
    bias: Tensor,
    epsilon: float = 1e-05,
    x_bias: Tensor | None = None,
) -> Tensor:
    return norm.layernorm(input, weight, bias, epsilon, x_bias)
