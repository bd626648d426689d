"""Gated activations."""

from torch import Tensor

from tests.aiter_emulator.semantics import activation

from ..jit.core import compile_ops


@compile_ops("module_activation")
def silu_and_mul(
    out: Tensor,
    input: Tensor,
    limit: float = 0.0,
) -> None:
    activation.silu_and_mul(out, input, limit)


@compile_ops("module_activation")
def swiglu_and_mul(
    out: Tensor,
    input: Tensor,
) -> None:
    activation.swiglu_and_mul(out, input)


@compile_ops("module_activation")
def gelu_and_mul(
    out: Tensor,
    input: Tensor,
) -> None:
    activation.gelu_and_mul(out, input)


@compile_ops("module_activation")
def gelu_tanh_and_mul(
    out: Tensor,
    input: Tensor,
) -> None:
    activation.gelu_tanh_and_mul(out, input)


@compile_ops("module_activation")
def silu_and_mul_quant(
    out: Tensor,
    input: Tensor,
    scale: Tensor,
    group_size: int,
    limit: float = 0.0,
    shuffle_scale: bool = False,
) -> None:
    activation.silu_and_mul_quant(out, input, scale, group_size, limit, shuffle_scale)
