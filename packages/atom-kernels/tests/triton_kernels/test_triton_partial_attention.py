"""Latent attention over a part of a context in Triton agrees with its reference, and so does its log-sum-exp."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.context.cases import make_problem, make_step
from atom_kernels.attention.context.reference import partial_latent_attention
from atom_kernels.cases import mismatch
from atom_kernels.mixers import select_mixer
from atom_kernels.mixers.cache_format import HEAD_SCALES, TOKEN_SCALES
from atom_kernels.operator import Tolerance
from atom_kernels.platform import detect_platform

SHAPE = (3, 48, 24, 16, 20, 2)
TOLERANCES = {"float32": Tolerance(5e-5, 5e-5), "bfloat16": Tolerance(4e-2, 4e-2)}
# Decodes of one piece and of several, the last of which see nothing of rank 1; a new prompt, and a chunk.
REQUESTS = ((1, 300), (1, 64), (1, 1), (7, 7), (20, 90))
DEVICE = detect_platform().device


@pytest.mark.parametrize(("dtype", "rank"), [("float32", 0), ("float32", 1), ("bfloat16", 1)])
def test_a_mixed_batch_agrees(dtype: str, rank: int):
    problem = make_problem(*SHAPE, rank, dtype=dtype)
    step = make_step(problem, REQUESTS, scattered=bool(rank)).to(DEVICE)
    got = step.run(select_mixer(problem, only_backend="triton"))
    expected = step.run(select_mixer(problem, only_backend="reference"))
    for name, one, other in zip(("output", "latents"), got, expected, strict=True):
        assert (difference := mismatch(one.float(), other.float(), TOLERANCES[dtype])) is None, f"{name}: {difference}"


@pytest.mark.parametrize("scales", [HEAD_SCALES, TOKEN_SCALES])
def test_latents_are_what_is_cached_times_its_scale(scales: str):
    problem = make_problem(*SHAPE, 1, kv_cache_dtype=detect_platform().float8, scales=scales)
    step = make_step(problem, REQUESTS, prologue=False).to(DEVICE)
    out, *caches = step.run(select_mixer(problem, only_backend="triton"))
    expected = partial_latent_attention(
        step.inputs[0],
        tuple(caches),
        step.geometry.query_start_loc,
        step.geometry.seq_lens,
        step.geometry.block_table,
        kv_lora_rank=problem.kv_lora_rank,
        scale=problem.scale,
        num_ranks=2,
        rank=1,
        latent_scale=step.weights.get("latent_scale"),
    )
    assert mismatch(out, expected, TOLERANCES["float32"]) is None


def test_padding_finds_nothing():
    problem = make_problem(*SHAPE, 1)
    step = make_step(problem, [(1, 30)], prologue=False).to(DEVICE)
    plan = select_mixer(problem, only_backend="triton")
    inputs = tuple(torch.cat((x, torch.full_like(x, float("nan")))) for x in step.inputs)
    out = replace(step, inputs=inputs).run(plan)[0]
    assert torch.equal(out[:1], step.run(plan)[0])
    assert not out[1, :, :-1].any()
    assert torch.isneginf(out[1, :, -1]).all()
