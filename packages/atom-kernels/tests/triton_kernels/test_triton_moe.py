"""Routing and experts in Triton agree with their references."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.moe import ExpertsProblem, RoutingProblem, experts
from atom_kernels.moe.grouped_backend import GroupedExperts
from atom_kernels.moe.ops import MOE_EXPERTS, MOE_ROUTE
from atom_kernels.moe.triton.configs import ExpertsConfig, TileConfig
from atom_kernels.moe.triton.experts_backend import TritonExperts
from atom_kernels.moe.triton.pairs import sort_pairs_kernel
from atom_kernels.platform import Facts, detect_platform, platform_from_facts
from atom_kernels.select import select
from atom_kernels.triton.launch import launch

HERE = detect_platform()
# The interpreter computes with numpy, which says where exp() leaves float32.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")


def here(weights):
    return {name: None if tensor is None else tensor.to(HERE.device) for name, tensor in weights.items()}


def on_device(inputs):
    return tuple(None if tensor is None else tensor.to(HERE.device) for tensor in inputs)


def make_experts(problem, num_tokens, seed=0):
    return MOE_EXPERTS.make_inputs(problem, num_tokens, torch.Generator().manual_seed(seed))


def triton_mismatch(problem, num_tokens, tile, few_pairs, ids=None):
    """What differs from the reference, with both products in tiles of that configuration."""
    weights, (x, gates, chosen, base) = make_experts(problem, num_tokens)
    inputs = (x, gates, chosen if ids is None else ids, base)
    kernel = TritonExperts(problem, here(weights), lambda _: ExpertsConfig(tile, tile), few_pairs)
    got = kernel(*on_device(inputs))
    return mismatch(got, experts(problem, weights, *inputs), MOE_EXPERTS.tolerance(problem))


def is_quick(case):
    """The interpreter takes its time: long sums once, few rows, and one number of them for half precision."""
    wide, long = "float32" in case.label, "hidden_size=2100" in case.label
    return case.label.endswith(("rows=1",) if long else ("rows=1", "rows=5") if wide else ("rows=5",))


@pytest.mark.parametrize("op", [MOE_ROUTE, MOE_EXPERTS], ids=lambda op: op.name)
def test_odd_shapes_in_every_dtype_agree_with_the_reference(op):
    count = 0
    for case in parity_cases(op, HERE):
        if case.backend.startswith("triton (Triton") and "codes decoded" not in case.backend and is_quick(case):
            problem = mismatch(case.run(), case.expected(), case.tolerance)
            assert problem is None, f"{case.label}: {problem}"
            count += 1
    assert count >= 20


@pytest.mark.parametrize("few_pairs", [0, 64])
@pytest.mark.parametrize("swap", [False, True])
def test_sorted_or_found_pairs_in_any_tiles_agree(few_pairs, swap):
    tile = TileConfig(block_m=16, block_n=32, block_k=16, group_m=2, swap=swap)
    problem = ExpertsProblem(5, 3, 40, 23, torch.float32, activation="swiglu_oai", bias=True)
    for num_tokens in (1, 21):
        assert triton_mismatch(problem, num_tokens, tile, few_pairs) is None


@pytest.mark.parametrize("few_pairs", [0, 128])
def test_an_expert_of_more_pairs_than_a_block_serves_them_all(few_pairs):
    problem = ExpertsProblem(3, 1, 24, 16, torch.float32)
    ids = torch.ones(50, 1, dtype=torch.int32)
    assert triton_mismatch(problem, 50, TileConfig(block_n=32, block_k=16), few_pairs, ids) is None


@pytest.mark.parametrize("few_pairs", [0, 64])
@pytest.mark.parametrize("num_tokens", [1, 2, 20])
def test_ids_of_no_expert_add_nothing(few_pairs, num_tokens):
    problem = ExpertsProblem(4, 2, 24, 16, torch.float32, bias=True)
    ids = torch.tensor([[-1, 3], [7, -1]], dtype=torch.int32).repeat(num_tokens, 1)[:num_tokens]
    assert triton_mismatch(problem, num_tokens, TileConfig(block_n=32, block_k=16), few_pairs, ids) is None


def test_a_token_may_choose_more_experts_than_are_here():
    problem, ids = ExpertsProblem(2, 4, 24, 16, torch.float32, num_absent=5), torch.tensor([[2, 2, 0, 1]])
    assert triton_mismatch(problem, 1, TileConfig(block_n=32, block_k=16), 64, ids.int()) is None


@pytest.mark.parametrize("size", [16, 1032], ids=["many rows a program", "two"])
@pytest.mark.parametrize("rules", [{}, {"activation": "swiglu_oai", "bias": True}], ids=["silu", "swiglu_oai"])
def test_grouped_products_of_sorted_rows_agree_and_leave_strangers_out(rules, size):
    problem = ExpertsProblem(5, 2, 24, size, torch.bfloat16, **rules)
    weights, inputs = make_experts(problem, 19)
    ids = inputs[2]
    ids[3], ids[7, 1] = -1, 5
    grouped, inputs_here = GroupedExperts(problem, here(weights)), on_device(inputs)
    got = grouped(*inputs_here)
    assert mismatch(got, experts(problem, weights, *inputs), MOE_EXPERTS.tolerance(problem)) is None
    add_up = grouped.in_runs(*inputs_here)
    assert torch.equal(torch.cat([add_up(slice(0, 8)), add_up(slice(8, 24))]), got)


@pytest.mark.parametrize("part_size", [16, 48, 112])
def test_pairs_are_sorted_alike_in_parts_and_in_one(part_size):
    ids = torch.randint(-1, 6, (100,), generator=torch.Generator().manual_seed(3), dtype=torch.int32)
    order, places, starts = (torch.full((size,), -7, dtype=torch.int32) for size in (100, 100, 6))
    got = ids, order, places, starts = on_device((ids, order, places, starts))
    grid = 5, -(-100 // part_size)
    launch(sort_pairs_kernel, grid, *got, 100, part_size, NUM_EXPERTS=5, BLOCK=16, DEPENDENT=False)
    ids, order, places, starts = (tensor.cpu().long() for tensor in got)
    of_an_expert = (ids >= 0) & (ids < 5)
    wanted = [pair for expert in range(5) for pair in range(100) if ids[pair] == expert]
    assert order.tolist() == wanted + [-7] * (100 - len(wanted))
    assert places[wanted].tolist() == list(range(len(wanted)))
    assert set(places[~of_an_expert].tolist()) == {-7}
    assert starts.tolist() == [int((ids[of_an_expert] < expert).sum()) for expert in range(6)]


def test_many_rows_go_to_the_grouped_product_on_gpus_that_have_one():
    facts = Facts(torch_build="cuda", num_devices=1, device_name="a GPU", device_arch="sm_90", triton_version="3.6.0")
    problem = ExpertsProblem(128, 8, 2048, 768, torch.bfloat16)
    rows = select(MOE_EXPERTS, problem, platform_from_facts(facts)).rows
    assert [(row.max_rows, "grouped_mm" in row.implementation) for row in rows] == [
        (768, False),
        (None, True),
    ]
    older = platform_from_facts(replace(facts, device_arch="sm_80"))
    assert [row.max_rows for row in select(MOE_EXPERTS, problem, older).rows] == [None]


def test_a_step_without_tokens_is_empty():
    weights, inputs = make_experts(ExpertsProblem(4, 2, 24, 16, torch.float32), 3)
    kernel = select(MOE_EXPERTS, ExpertsProblem(4, 2, 24, 16, torch.float32), only_backend="triton").prepare(
        here(weights)
    )
    assert kernel(*(tensor[:0] for tensor in on_device(inputs))).shape == (0, 24)


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
def test_routing_survives_rows_of_garbage_and_breaks_ties_by_the_lower_expert():
    for rules in ({}, {"num_groups": 4, "top_groups": 2, "group_score": "top2"}):
        problem = RoutingProblem(16, 4, **rules)
        route = select(MOE_ROUTE, problem, only_backend="triton").prepare()
        _, ids = route(torch.full((2, 16), float("nan"), device=HERE.device))
        assert bool(((ids >= 0) & (ids < 16)).all())
        assert all(len(set(row)) == 4 for row in ids.tolist())
        _, ids = route(torch.zeros(2, 16, device=HERE.device))
        assert ids.tolist() == [[0, 1, 2, 3]] * 2
