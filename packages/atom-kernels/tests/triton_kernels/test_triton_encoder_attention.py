"""Attention of encoders in Triton agrees with its reference, and leaves a text's neighbors out of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.encoder.cases import make_problem, make_step
from atom_kernels.cases import mismatch
from atom_kernels.mixers import select_mixer
from atom_kernels.operator import Tolerance
from atom_kernels.platform import detect_platform

TOLERANCES = {"float32": Tolerance(2e-5, 2e-5), "bfloat16": Tolerance(2e-2, 2e-2), "float16": Tolerance(4e-3, 4e-3)}
# One token, and lengths around the borders of tiles and of windows.
LENGTHS = (1, 7, 64, 65, 33, 130)
DEVICE = detect_platform().device


@pytest.mark.parametrize(
    ("window", "causal"), [(None, False), (1, False), (20, False), (64, False), (None, True), (20, True)]
)
@pytest.mark.parametrize(("dtype", "head_dim"), [("float32", 16), ("bfloat16", 72), ("float16", 80), ("float32", 256)])
def test_ragged_texts_agree(dtype: str, head_dim: int, window: int | None, causal: bool):
    problem = make_problem(2, head_dim, dtype, window=window, causal=causal)
    step = make_step(problem, LENGTHS, rotary=window == 20).to(DEVICE)
    got = step.run(select_mixer(problem, only_backend="triton"))[0]
    expected = step.run(select_mixer(problem, only_backend="reference"))[0]
    assert (difference := mismatch(got, expected, TOLERANCES[dtype])) is None, difference


def test_more_texts_than_are_looked_at_together_agree():
    problem = make_problem(1, 16)
    step = make_step(problem, [1 + index % 3 for index in range(300)]).to(DEVICE)
    got = step.run(select_mixer(problem, only_backend="triton"))[0]
    expected = step.run(select_mixer(problem, only_backend="reference"))[0]
    assert mismatch(got, expected, TOLERANCES["float32"]) is None


@pytest.mark.parametrize(("window", "causal"), [(None, False), (20, False), (None, True)])
def test_a_text_gets_the_same_bits_alone_and_in_any_batch(window: int | None, causal: bool):
    problem = make_problem(3, 24, window=window, causal=causal)
    plan = select_mixer(problem, only_backend="triton")
    step = make_step(problem, LENGTHS).to(DEVICE)
    together, first = step.run(plan)[0], 0
    for length in LENGTHS:
        rows = slice(first, first + length)
        alone = replace(make_step(problem, [length]).to(DEVICE), inputs=tuple(x[rows] for x in step.inputs))
        assert torch.equal(alone.run(plan)[0], together[rows])
        first += length


def test_rows_of_no_text_are_zeros_and_texts_of_no_token_are_none():
    problem = make_problem(2, 16)
    plan = select_mixer(problem, only_backend="triton")
    step = make_step(problem, [5, 40]).to(DEVICE)
    starts = torch.tensor([0, 0, 5, 45, 45], dtype=torch.int32, device=DEVICE)
    padded = replace(
        step,
        inputs=tuple(torch.cat((x, torch.full_like(x[:9], float("nan")))) for x in step.inputs),
        geometry=replace(step.geometry, query_start_loc=starts, num_reqs=4),
    )
    out = padded.run(plan)[0]
    assert torch.equal(out[:45], step.run(plan)[0])
    assert not out[45:].any()
    assert not replace(step, geometry=replace(step.geometry, num_tokens=0)).run(plan)[0].any()


def test_queries_whose_heads_lie_apart_are_served():
    problem = make_problem(2, 16)
    plan = select_mixer(problem, only_backend="triton")
    step = make_step(problem, [5, 40]).to(DEVICE)
    apart = replace(step, inputs=tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in step.inputs))
    assert torch.equal(apart.run(plan)[0], step.run(plan)[0])
