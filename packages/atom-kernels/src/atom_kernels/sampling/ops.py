"""Sampling as an operator: what `explain`, `check` and `bench` ask of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from atom_kernels.aiter import sampling as aiter_sampling
from atom_kernels.operator import Backend, Op, Tolerance, Work
from atom_kernels.sampling import native_backend, torch_backend, triton_backend
from atom_kernels.sampling.contract import (
    SamplingProblem,
    SamplingTables,
    SlotSamplingProblem,
    sample,
    sample_slots,
)
from atom_kernels.sampling.logprobs import TOKEN_LOGPROBS
from atom_kernels.sampling.masks import BAN_TOKENS
from atom_kernels.sampling.penalties import PENALIZE
from atom_kernels.sampling.philox import PhiloxProblem, philox_uniform


def _where_c_compiles(problem: object, platform: object) -> str | None:
    return native_backend.unavailable()


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
    reference=lambda problem, weights, *inputs: sample(*inputs),
    schema="(Tensor logits, Tensor uniform, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p) -> Tensor",
    fake=lambda problem, logits, *rest: logits.new_empty(logits.shape[0], dtype=torch.int64),
    backends=(
        aiter_sampling.GREEDY_BACKEND,
        Backend.of("triton", "Triton, thresholds by pivots", triton_backend.sample_by_triton),
        Backend.of(
            "native", "C, thresholds from histograms", native_backend.sample_by_native, supports=_where_c_compiles
        ),
        Backend.of("torch", "torch top-k of candidates", torch_backend.sample_by_torch),
    ),
    make_inputs=_make_inputs,
    parity_problems=_parity_problems,
    examples=lambda: (SamplingProblem(49152), SamplingProblem(49152, greedy=True)),
    # Tokens: they are equal or wrong.
    tolerance=lambda problem: Tolerance(atol=0, rtol=0),
    work=lambda problem, num_rows: Work(num_rows * problem.vocab_size * 4),
)


def _make_slot_inputs(
    problem: SlotSamplingProblem, num_rows: int, generator: torch.Generator
) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """The rows of `_make_inputs` in slots of any order, some of which nobody uses."""
    num_slots = num_rows + 3
    _, (logits, _, temperature, top_k, top_p, min_p) = _make_inputs(
        SamplingProblem(problem.vocab_size), num_slots, generator
    )
    tables = SamplingTables(
        temperature,
        top_k.int(),
        top_p,
        min_p,
        seed=torch.randint(-(2**63), 2**63 - 1, (num_slots,), generator=generator),
        sample_index=torch.randint(0, 5, (num_slots,), generator=generator),
    )
    slots = torch.randperm(num_slots, generator=generator)[:num_rows]
    positions = torch.randint(0, 2**31 - 1, (num_rows,), generator=generator)
    return {}, (logits[:num_rows], slots, positions, *tables)


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
            "C, for gathered rows",
            partial(sample_slots, draw=native_backend.sample_by_native, uniform=native_backend.philox_by_native),
            supports=_where_c_compiles,
        ),
        _slot_backend("torch", "torch, for gathered rows", partial(sample_slots, draw=torch_backend.sample_by_torch)),
    ),
    make_inputs=_make_slot_inputs,
    parity_problems=lambda: tuple(
        SlotSamplingProblem(size, filters) for size in (2, 17, 5003) for filters in (False, True)
    ),
    examples=lambda: tuple(SlotSamplingProblem(49152, filters) for filters in (False, True)),
    # Tokens: they are equal or wrong.
    tolerance=lambda problem: Tolerance(atol=0, rtol=0),
    work=lambda problem, num_rows: Work(num_rows * problem.vocab_size * 4),
)


def _make_counters(problem: PhiloxProblem, num_rows: int, generator: torch.Generator) -> tuple[dict, tuple]:
    seeds = torch.randint(-(2**63), 2**63 - 1, (num_rows,), generator=generator)
    samples, positions = (torch.randint(0, 2**40, (num_rows,), generator=generator) for _ in range(2))
    return {}, (seeds, samples, positions)


PHILOX_UNIFORM = Op(
    name="philox_uniform",
    contract=philox_uniform,
    reference=lambda problem, weights, *inputs: philox_uniform(*inputs),
    schema="(Tensor seed, Tensor sample_index, Tensor position) -> Tensor",
    fake=lambda problem, seed, *rest: seed.new_empty(seed.shape, dtype=torch.float64),
    backends=(
        Backend.of("triton", "Triton philox", triton_backend.philox_by_triton),
        Backend.of("native", "C", native_backend.philox_by_native, supports=_where_c_compiles),
        Backend.of("torch", "torch int64", philox_uniform),
    ),
    make_inputs=_make_counters,
    parity_problems=lambda: (PhiloxProblem(),),
    examples=lambda: (PhiloxProblem(),),
    # The same bits everywhere.
    tolerance=lambda problem: Tolerance(atol=0, rtol=0),
    work=lambda problem, num_rows: Work(num_rows * 4 * problem.dtype.itemsize),
)

OPS = (SAMPLE, SAMPLE_SLOTS, PHILOX_UNIFORM, BAN_TOKENS, PENALIZE, TOKEN_LOGPROBS)
