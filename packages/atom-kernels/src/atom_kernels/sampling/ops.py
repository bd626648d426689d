"""Sampling as an operator: what `explain`, `check` and `bench` ask of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from atom_kernels.operator import Backend, Op, Tolerance, Work
from atom_kernels.sampling import native_backend, torch_backend, triton_backend
from atom_kernels.sampling.contract import SamplingTables, SlotSamplingProblem, sample_slots
from atom_kernels.sampling.drafts import ACCEPT_DRAWS
from atom_kernels.sampling.logprobs import TOKEN_LOGPROBS
from atom_kernels.sampling.masks import BAN_TOKENS


def _make_inputs(
    problem: SlotSamplingProblem, num_rows: int, generator: torch.Generator
) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """Slots in any order, some of which nobody uses; they take turns in their parameters. A third of logits tie."""
    num_slots = num_rows + 3

    def turns(*values: float) -> torch.Tensor:
        return torch.tensor(values).repeat(-(-num_slots // len(values)))[:num_slots]

    logits = torch.randn(num_rows, problem.vocab_size, generator=generator) * 3
    tied = torch.rand(logits.shape, generator=generator) < 1 / 3
    tables = SamplingTables(
        temperature=turns(0.8, 0.0, 1.0, 0.6, 2.0),
        top_k=turns(0, 5, 50, -1).int(),
        top_p=turns(0.9, 1.0, 0.9, 0.3, 1.0, 0.0),
        min_p=turns(0.0, 0.0, 0.1),
        seed=torch.randint(-(2**63), 2**63 - 1, (num_slots,), generator=generator),
        sample_index=torch.randint(0, 5, (num_slots,), generator=generator),
    )
    slots = torch.randperm(num_slots, generator=generator)[:num_rows]
    positions = torch.randint(0, 2**31 - 1, (num_rows,), generator=generator)
    return {}, (torch.where(tied, logits.round(), logits), slots, positions, *tables)


def _slot_backend(name: str, implementation: str, function: Callable[..., torch.Tensor], **options: Any) -> Backend:
    """A backend that calls a function with the problem's `filters`."""

    def bind(problem: SlotSamplingProblem, weights: Any) -> Callable[..., torch.Tensor]:
        return partial(function, filters=problem.filters)

    return Backend(name=name, implementation=implementation, bind=bind, **options)


SAMPLE_SLOTS = Op(
    name="sample_slots",
    contract=sample_slots,
    reference=lambda problem, weights, *inputs: sample_slots(*inputs, filters=problem.filters),
    schema="(Tensor logits, Tensor slots, Tensor positions, Tensor temperature, Tensor top_k, Tensor top_p, "
    "Tensor min_p, Tensor seed, Tensor sample_index) -> Tensor",
    fake=lambda problem, logits, *rest: logits.new_empty(logits.shape[0], dtype=torch.int64),
    backends=(
        _slot_backend("triton", "Triton, parameters and random numbers by slot", triton_backend.sample_slots_by_triton),
        _slot_backend(
            "native",
            "C, parameters and random numbers by slot",
            native_backend.sample_slots_by_native,
            supports=native_backend.where_it_compiles,
        ),
        _slot_backend("torch", "torch, for gathered rows", partial(sample_slots, draw=torch_backend.sample_by_torch)),
    ),
    make_inputs=_make_inputs,
    parity_problems=lambda: tuple(
        SlotSamplingProblem(size, filters) for size in (1, 2, 17, 1000, 5003) for filters in (False, True)
    ),
    examples=lambda: tuple(SlotSamplingProblem(49152, filters) for filters in (False, True)),
    # Tokens: they are equal or wrong.
    tolerance=lambda problem: Tolerance(atol=0, rtol=0),
    work=lambda problem, num_rows: Work(num_rows * problem.vocab_size * 4),
)


OPS = (SAMPLE_SLOTS, BAN_TOKENS, TOKEN_LOGPROBS, ACCEPT_DRAWS)
