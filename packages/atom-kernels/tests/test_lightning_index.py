"""What a lightning index over pages must choose, and what its choice must not depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.index import IndexProblem, best_positions, lightning_index
from atom_kernels.attention.index.cases import make_problem, make_step
from atom_kernels.mixers import select_mixer
from atom_kernels.mixers.plan import usable_plans
from atom_kernels.operator import Work
from atom_kernels.protocols import Pages

SHAPE = (6, 24, 8, 16)
BACKENDS = [plan.backend for plan in usable_plans(make_problem(*SHAPE))]
every_backend = pytest.mark.parametrize("backend", BACKENDS)


def test_the_reference_takes_the_highest_sums_of_positive_products():
    problem = make_problem(*SHAPE)
    step = make_step(problem, [(40, 40)], prologue=False)
    chosen, keys = step.run(select_mixer(problem, only_backend="reference"))
    q, k, weights = step.inputs
    scores = (torch.einsum("thd,sd->hts", q, k).clamp(min=0) * weights.T[:, :, None] * problem.scale).sum(0)
    for token in range(40):
        seen = scores[token, : token + 1].tolist()
        best = sorted(range(token + 1), key=lambda position: (-seen[position], position))[:16]
        assert chosen[token].tolist() == sorted(best) + [-1] * (16 - len(best))
    assert torch.equal(keys.flatten(0, 1)[step.geometry.slot_mapping], k)


def test_the_contract_can_be_called_without_a_plan():
    problem = make_problem(*SHAPE)
    step = make_step(problem, [(2, 6), (9, 40)], prologue=False)
    chosen, keys = step.run(select_mixer(problem, only_backend="reference"))
    q, _, weights = step.inputs
    places = (step.geometry.query_start_loc, step.geometry.seq_lens, step.geometry.block_table)
    again = lightning_index(q, weights, (keys,), *places, top_k=problem.top_k, scale=problem.scale)
    assert torch.equal(again, chosen)


def test_of_equal_scores_the_first_positions_are_taken():
    scores = torch.tensor([1.0, 0.0, -0.0, 2.0, 0.0, 0.0])
    assert best_positions(scores, 4).tolist() == [0, 1, 2, 3]


@every_backend
def test_a_token_that_sees_no_more_than_it_may_choose_gets_everything(backend: str):
    problem = make_problem(*SHAPE)
    chosen = make_step(problem, [(20, 20)]).run(select_mixer(problem, only_backend=backend))[0]
    for token in range(16):
        assert chosen[token].tolist() == [*range(token + 1)] + [-1] * (15 - token)
    assert (chosen[16:] >= 0).all()


@every_backend
def test_rows_of_no_request_have_no_positions(backend: str):
    problem = make_problem(*SHAPE)
    step = make_step(problem, [(1, 50), (30, 30), (2, 7)], prologue=False)
    plan = select_mixer(problem, only_backend=backend)
    inputs = tuple(torch.cat((x, torch.full_like(x[:2], float("nan")))) for x in step.inputs)
    chosen = plan.forward(inputs, plan_caches(step), plan.build_metadata(step.geometry), weights=plan.prepare({}))
    assert torch.equal(chosen[:33], step.run(plan)[0])
    assert (chosen[33:] == -1).all()


@every_backend
def test_nothing_past_the_end_of_a_request_is_read(backend: str):
    problem = make_problem(*SHAPE, block_size=8)
    step = make_step(problem, [(1, 70), (40, 130)])
    plan = select_mixer(problem, only_backend=backend)
    clean = step.run(plan)[0]
    flat = step.caches[0].flatten(0, 1)
    for request, length in enumerate([70, 130]):
        last = int(step.geometry.block_table[request, -(-length // 8) - 1]) * 8
        flat[last + (length - 1) % 8 + 1 : last + 8] = float("nan")
    assert torch.equal(step.run(plan)[0], clean)


@every_backend
def test_a_prompt_in_chunks_chooses_as_the_whole_prompt(backend: str):
    problem = make_problem(*SHAPE)
    step = make_step(problem, [(90, 90)], scattered=True)
    plan = select_mixer(problem, only_backend=backend)
    caches, parts = plan_caches(step), []
    for start, end in ((0, 1), (1, 8), (8, 50), (50, 90)):
        assert step.prologue is not None
        geometry = replace(
            step.geometry,
            query_start_loc=torch.tensor([0, end - start], dtype=torch.int32),
            seq_lens=torch.tensor([end], dtype=torch.int32),
            slot_mapping=step.geometry.slot_mapping[start:end],
            num_tokens=end - start,
            max_query_len=end - start,
            max_seq_len=end,
            prompts_are_new=False,
        )
        prologue = replace(step.prologue, positions=step.prologue.positions[start:end])
        inputs = tuple(x[start:end] for x in step.inputs)
        metadata = plan.build_metadata(geometry)
        parts.append(plan.forward(inputs, caches, metadata, weights=plan.prepare({}), prologue=prologue))
    assert torch.equal(torch.cat(parts), step.run(plan)[0])


def plan_caches(step):
    return tuple(cache.clone() for cache in step.caches)


def test_keys_share_the_block_table_of_latents():
    problem = make_problem(*SHAPE, "bfloat16")
    assert problem.keeps == Pages()
    assert problem.layout.block_bytes == 16 * 24 * 2
    assert (problem.out_shape, problem.out_dtype) == ((16,), "int32")


def test_the_work_is_a_product_for_each_pair_where_there_is_a_choice():
    problem = make_problem(2, 8, 4, 3)
    chosen = problem.work([(2, 5), (1, 3)])
    elements = 5 * 8 + 3 * (2 + 1) * (8 + 1)
    assert chosen == Work(4 * elements + 4 * (2 * 3 + 3), 2 * (4 + 5) * 2 * 8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_heads": 0}, "IndexProblem.num_heads is 0; it must be at least 1"),
        ({"rotary_dim": 3}, "IndexProblem.rotary_dim is 3; it must be even and at most head_dim, 8"),
        ({"rotary_dim": 10}, "IndexProblem.rotary_dim is 10; it must be even and at most head_dim, 8"),
        ({"dtype": "int3"}, "IndexProblem.dtype is 'int3'; give one of"),
    ],
)
def test_a_problem_that_cannot_be_is_refused(wrong, message):
    sizes = {"num_heads": 2, "head_dim": 8, "rotary_dim": 4, "top_k": 3, "scale": 1.0, "dtype": "float32"}
    with pytest.raises(ValueError, match=message):
        IndexProblem(**(sizes | {"block_size": 16} | wrong))
