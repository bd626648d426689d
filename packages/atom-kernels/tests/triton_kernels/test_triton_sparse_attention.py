"""Sparse latent attention in Triton agrees with its reference: chosen latents, short requests, padding, float8."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.sparse import sparse_latent_attention
from atom_kernels.attention.sparse.cases import make_problem, make_step
from atom_kernels.cases import mismatch
from atom_kernels.mixers import select_mixer
from atom_kernels.operator import Tolerance
from atom_kernels.platform import detect_platform
from padded_steps import last_is_padding

SHAPE = (6, 48, 24, 16, 20)
TOLERANCES = {"float32": Tolerance(5e-5, 5e-5), "bfloat16": Tolerance(4e-2, 4e-2)}
MIXED = ((1, 1), (1, 30), (1, 64), (2, 70), (5, 5), (6, 27))
DEVICE = detect_platform().device


def assert_agrees(problem, requests, **options):
    step = make_step(problem, requests, **options).to(DEVICE)
    got = step.run(select_mixer(problem, only_backend="triton"))
    expected = step.run(select_mixer(problem, only_backend="reference"))
    for name, one, other in zip(("output", "latents"), got, expected, strict=True):
        assert (difference := mismatch(one.float(), other.float(), TOLERANCES[problem.dtype])) is None, (
            f"{name}: {difference}"
        )


@pytest.mark.parametrize(
    ("dtype", "options"),
    [("float32", {}), ("bfloat16", {"interleaved": False, "scattered": True}), ("bfloat16", {"prologue": False})],
    ids=str,
)
def test_a_mixed_batch_agrees(dtype, options):
    assert_agrees(make_problem(*SHAPE, 24, dtype=dtype), MIXED, **options)


@pytest.mark.parametrize("shape", [(1, 72, 40, 2, 33, 9), (40, 16, 8, 4, 8, 50)], ids=str)
def test_any_number_of_heads_over_latents_of_any_size(shape):
    assert_agrees(make_problem(*shape, block_size=8), [(1, 33), (2, 60)])


def test_a_step_of_short_requests_is_one_of_latent_attention():
    problem = make_problem(*SHAPE, 70)
    step = make_step(problem, [(1, 40), (6, 70)]).to(DEVICE)
    plan = select_mixer(problem, only_backend="triton")
    assert plan.build_metadata(step.geometry).rows is None
    assert_agrees(problem, [(1, 40), (6, 70)])


def test_padding_requests_write_nothing_and_give_zeros():
    problem = make_problem(*SHAPE, 40)
    plan = select_mixer(problem, only_backend="triton")
    step = make_step(problem, [(1, 5), (1, 300), (1, 7)], prologue=False).to(DEVICE)
    whole = step.run(plan)[0]
    chosen = step.inputs[2].clone()
    chosen[2] = -1
    out, cache = replace(last_is_padding(step), inputs=(*step.inputs[:2], chosen)).run(plan)
    assert mismatch(out[:2], whole[:2], TOLERANCES["float32"]) is None
    assert torch.equal(out[2], torch.zeros_like(out[2]))
    block = step.geometry.block_table[2, 0]
    assert torch.equal(cache[block], step.caches[0][block])


def test_only_chosen_latents_are_read():
    problem = make_problem(*SHAPE, 32)
    step = make_step(problem, [(1, 200)], prologue=False).to(DEVICE)
    plan = select_mixer(problem, only_backend="triton")
    clean = step.run(plan)[0]
    unseen = torch.ones(200, dtype=torch.bool, device=DEVICE)
    unseen[step.inputs[2][0].long()] = False
    blocks = step.geometry.block_table[0].long()
    for position in unseen.nonzero().flatten().tolist():
        step.caches[0][blocks[position // 16], position % 16] = float("nan")
    assert torch.equal(step.run(plan)[0], clean)


@pytest.mark.parametrize("scales", ["none", "head", "token_head"])
def test_a_float8_cache_is_read(scales):
    problem = make_problem(*SHAPE, 32, dtype="bfloat16", kv_cache_dtype="float8_e4m3fn", scales=scales)
    step = make_step(problem, [(1, 90), (2, 64)], prologue=False).to(DEVICE)
    out, *caches = step.run(select_mixer(problem, only_backend="triton"))
    q, _, chosen = step.inputs
    places = (step.geometry.query_start_loc, step.geometry.seq_lens, step.geometry.block_table)
    sizes = {"v_head_dim": problem.v_head_dim, "scale": problem.scale}
    sizes["latent_scale"] = step.weights.get("latent_scale")
    expected = sparse_latent_attention(q, chosen, tuple(caches), step.weights["kv_b"], *places, **sizes)
    assert mismatch(out, expected, TOLERANCES["bfloat16"]) is None
