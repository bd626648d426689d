"""Sampling as an operator: what `explain`, `check` and `bench` ask of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.aiter import sampling as aiter_sampling
from atom_kernels.operator import Backend, Op, Tolerance, Work
from atom_kernels.sampling import native_backend, triton_backend
from atom_kernels.sampling.reference import sample_reference
from atom_kernels.sampling.sampler import sample
from atom_kernels.sampling.torch_backend import sample_by_torch


@dataclass(frozen=True)
class SamplingProblem:
    """Attributes:
    vocab_size: V; logits are float32 [B, V].
    greedy: all temperatures are 0.
    """

    vocab_size: int
    greedy: bool = False


def _make_inputs(
    problem: SamplingProblem, num_rows: int, generator: torch.Generator
) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """Rows take turns in their parameters: greedy, plain, filtered in one way or in all; a third of the logits tie."""

    def turns(*values: float) -> torch.Tensor:
        return torch.tensor(values).repeat(-(-num_rows // len(values)))[:num_rows]

    logits = torch.randn(num_rows, problem.vocab_size, generator=generator) * 3
    tied = torch.rand(logits.shape, generator=generator) < 1 / 3
    inputs = (
        torch.where(tied, logits.round(), logits),
        torch.rand(num_rows, dtype=torch.float64, generator=generator),
        torch.zeros(num_rows) if problem.greedy else turns(0.8, 0.0, 1.0, 0.6, 2.0),
        turns(0, 5, 50, -1).to(torch.int64),
        turns(0.9, 1.0, 0.9, 0.3, 1.0, 0.0),
        turns(0.0, 0.0, 0.1),
    )
    return {}, inputs


def _parity_problems() -> tuple[SamplingProblem, ...]:
    return (
        *(SamplingProblem(size) for size in (1, 2, 17, 1000, 5003)),
        *(SamplingProblem(size, greedy=True) for size in (1, 16, 1008)),
    )


SAMPLE = Op(
    name="sample",
    contract=sample,
    reference=lambda problem, weights, *inputs: sample_reference(*inputs),
    schema="(Tensor logits, Tensor uniform, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p) -> Tensor",
    fake=lambda problem, logits, *rest: logits.new_empty(logits.shape[0], dtype=torch.int64),
    backends=(
        aiter_sampling.GREEDY_BACKEND,
        Backend(
            name="triton",
            implementation="Triton, thresholds by pivots",
            supports=lambda problem, platform: None,
            bind=lambda problem, weights: triton_backend.sample_by_triton,
        ),
        Backend(
            name="native",
            implementation="C, thresholds from histograms",
            supports=lambda problem, platform: native_backend.unavailable(),
            bind=lambda problem, weights: native_backend.sample_by_native,
        ),
        Backend(
            name="torch",
            implementation="torch top-k of candidates",
            supports=lambda problem, platform: None,
            bind=lambda problem, weights: sample_by_torch,
        ),
    ),
    make_inputs=_make_inputs,
    parity_problems=_parity_problems,
    examples=lambda: (SamplingProblem(49152), SamplingProblem(49152, greedy=True)),
    # Tokens: they are equal or wrong.
    tolerance=lambda problem: Tolerance(atol=0, rtol=0),
    work=lambda problem, num_rows: Work(num_rows * problem.vocab_size * 4),
)

OPS = (SAMPLE,)
