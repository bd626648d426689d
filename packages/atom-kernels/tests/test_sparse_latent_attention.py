"""What latent attention over chosen positions must give, and what a row's result must not depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.mla import cases as dense_cases
from atom_kernels.attention.sparse import SparseMlaProblem, sparse_latent_attention
from atom_kernels.attention.sparse.cases import make_problem, make_step
from atom_kernels.mixers import select_mixer
from atom_kernels.mixers.plan import usable_plans
from atom_kernels.operator import Work

SHAPE = (6, 48, 24, 16, 20)
TOP_K = 32
DTYPES = ("float32", "bfloat16")
USABLE = {dtype: [plan.backend for plan in usable_plans(make_problem(*SHAPE, TOP_K, dtype=dtype))] for dtype in DTYPES}
every_backend = pytest.mark.parametrize("backend", USABLE["float32"])
every_case = pytest.mark.parametrize(
    ("backend", "dtype"), [(name, dtype) for dtype in DTYPES for name in USABLE[dtype]]
)


def test_the_reference_is_latent_attention_where_everything_is_chosen():
    problem = make_problem(*SHAPE, 300)
    requests = [(1, 70), (40, 130), (9, 9)]
    sparse = make_step(problem, requests)
    dense = dense_cases.make_step(problem.dense, requests)
    expected = dense.run(select_mixer(problem.dense, only_backend="reference"))
    for got, wanted in zip(sparse.run(select_mixer(problem, only_backend="reference")), expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_the_contract_can_be_called_without_a_plan():
    problem = make_problem(*SHAPE, TOP_K)
    step = make_step(problem, [(2, 6), (9, 60)], prologue=False)
    out, cache = step.run(select_mixer(problem, only_backend="reference"))
    q, _, chosen = step.inputs
    places = (step.geometry.query_start_loc, step.geometry.seq_lens, step.geometry.block_table)
    again = sparse_latent_attention(
        q, chosen, (cache,), step.weights["kv_b"], *places, v_head_dim=problem.v_head_dim, scale=problem.scale
    )
    assert torch.equal(again, out)


@every_case
def test_only_chosen_latents_are_read(backend: str, dtype: str):
    problem = make_problem(*SHAPE, TOP_K, dtype=dtype)
    step = make_step(problem, [(1, 200)], prologue=False)
    plan = select_mixer(problem, only_backend=backend)
    clean = step.run(plan)[0]
    unseen = torch.ones(200, dtype=torch.bool)
    unseen[step.inputs[2][0].long()] = False
    blocks = step.geometry.block_table[0, : -(-200 // 16)].long()
    for position in unseen.nonzero().flatten().tolist():
        step.caches[0][blocks[position // 16], position % 16] = float("nan")
    assert torch.equal(step.run(plan)[0], clean)


@every_case
def test_rows_of_no_request_are_zeros(backend: str, dtype: str):
    problem = make_problem(*SHAPE, TOP_K, dtype=dtype)
    step = make_step(problem, [(1, 90), (30, 130), (2, 7)], prologue=False)
    plan = select_mixer(problem, only_backend=backend)
    q, kv = (torch.cat((x, torch.full_like(x[:2], float("nan")))) for x in step.inputs[:2])
    chosen = torch.cat((step.inputs[2], torch.full_like(step.inputs[2][:2], -1)))
    cache = tuple(cache.clone() for cache in step.caches)
    weights, metadata = plan.prepare(step.weights), plan.build_metadata(step.geometry)
    out = plan.forward((q, kv, chosen), cache, metadata, weights=weights)
    assert torch.equal(out[:33], step.run(plan)[0])
    assert out[33:].abs().max() == 0


@every_backend
def test_a_row_is_the_same_alone_and_among_others(backend: str):
    problem = make_problem(*SHAPE, TOP_K)
    plan = select_mixer(problem, only_backend=backend)
    together = make_step(problem, [(1, 130), (1, 64), (1, 200)], prologue=False)
    out = together.run(plan)[0]
    geometry = replace(
        together.geometry,
        query_start_loc=torch.tensor([0, 1], dtype=torch.int32),
        seq_lens=together.geometry.seq_lens[1:2],
        block_table=together.geometry.block_table[1:2],
        slot_mapping=together.geometry.slot_mapping[1:2],
        num_reqs=1,
        num_tokens=1,
        num_decodes=1,
        max_seq_len=64,
    )
    alone = replace(together, inputs=tuple(x[1:2] for x in together.inputs), geometry=geometry)
    torch.testing.assert_close(alone.run(plan)[0][0], out[1], atol=1e-6, rtol=1e-5)


def test_the_work_is_that_of_the_chosen_latents():
    problem = make_problem(2, 8, 4, 2, 6, 3)
    products, per_row = 8 * (4 + 6), 2 * (6 + 6)
    flops = 2 * 2 * (2 * products + 2 * 3 * (10 + 8))
    elements = 5 * 10 + 2 * products + 2 * per_row
    assert problem.work([(2, 5)]) == Work(4 * elements + 4 * 2 * 3, flops)
    assert problem.work([(2, 3)]) == problem.dense.work([(2, 3)])


def test_a_layer_that_chooses_nothing_is_refused():
    with pytest.raises(ValueError, match="SparseMlaProblem.top_k is 0; it must be at least 1"):
        SparseMlaProblem.of(dense_cases.make_problem(*SHAPE), 0)
