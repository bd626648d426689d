"""Sampling from logits."""

from torch import Generator, Tensor

from tests.aiter_emulator.semantics import sampling

from ..jit.core import compile_ops


@compile_ops("module_sample")
def greedy_sample(
    out: Tensor,
    input: Tensor,
) -> None:
    sampling.greedy_sample(out, input)


@compile_ops("module_sample")
def random_sample_outer_exponential(
    out: Tensor,
    input: Tensor,
    exponentials: Tensor,
    temperatures: Tensor,
    eps: float = 1e-10,
) -> None:
    sampling.random_sample_outer_exponential(out, input, exponentials, temperatures, eps)


@compile_ops("module_sample")
def mixed_sample_outer_exponential(
    out: Tensor,
    input: Tensor,
    exponentials: Tensor,
    temperature: Tensor,
    eps: float = 1e-10,
) -> None:
    sampling.mixed_sample_outer_exponential(out, input, exponentials, temperature, eps)


@compile_ops("module_sample")
def mixed_sample(
    out: Tensor,
    input: Tensor,
    temperature: Tensor,
    lambd: float = 1.0,
    generator: Generator | None = None,
    eps: float = 1e-10,
) -> None:
    sampling.mixed_sample(out, input, temperature, lambd, generator, eps)
