"""Routing and experts through AITER's emulator: the reference's numbers, and reasons where AITER has no kernel."""

from __future__ import annotations

import pytest
import torch

from amd_machine import amd_machine
from atom_kernels.cases import mismatch
from atom_kernels.moe import ExpertsProblem, RoutingProblem
from atom_kernels.moe.ops import MOE_EXPERTS, MOE_ROUTE
from atom_kernels.operator import Tolerance
from atom_kernels.platform import Platform
from atom_kernels.select import select

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
EVERYWHERE = [("gfx942", "git"), ("gfx950", "pypi")]

BIASED = {"scoring": "sigmoid", "renormalize": True, "correction_bias": True}
DEEPSEEK_V3 = RoutingProblem(256, 8, FP32, **BIASED, num_groups=8, top_groups=4, group_score="top2", scaling_factor=2.5)
# The function of AITER that each should be routed by, and the problem.
ROUTINGS = {
    "Qwen3": ("topk_softmax", RoutingProblem(128, 8, BF16, renormalize=True)),
    "GPT-OSS": ("topk_softmax", RoutingProblem(32, 4, FP16, renormalize=True)),
    "an odd number": ("topk_softmax", RoutingProblem(60, 4, FP32, scaling_factor=16.0)),
    "one expert": ("topk_softmax", RoutingProblem(1, 1, BF16)),
    "DeepSeek-V2": ("grouped_topk", RoutingProblem(160, 6, FP32, num_groups=8, top_groups=3, scaling_factor=16.0)),
    "DeepSeek-V2 in bfloat16": ("grouped_topk", RoutingProblem(160, 6, BF16, num_groups=8, top_groups=3)),
    "two groups": ("grouped_topk", RoutingProblem(24, 3, FP16, num_groups=2, top_groups=1, renormalize=True)),
    "four groups": ("grouped_topk", RoutingProblem(32, 3, FP32, num_groups=4, top_groups=2)),
    "as many as fit": ("grouped_topk", RoutingProblem(256, 64, FP32, num_groups=8, top_groups=4)),
    "Llama 4": ("grouped_topk", RoutingProblem(16, 1, FP32, scoring="sigmoid")),
    "DeepSeek-V3": ("biased_grouped_topk", DEEPSEEK_V3),
    "Kimi K2": ("biased_grouped_topk", RoutingProblem(384, 8, FP32, **BIASED, scaling_factor=2.827)),
    "GLM-4 in bfloat16": ("biased_grouped_topk", RoutingProblem(160, 8, BF16, **BIASED, scaling_factor=2.5)),
    "all groups": ("biased_grouped_topk", RoutingProblem(37, 5, FP16, **BIASED, group_score="top2")),
    "small groups": (
        "biased_grouped_topk",
        RoutingProblem(16, 3, FP32, **BIASED, num_groups=4, top_groups=2, group_score="top2"),
    ),
}


def route_both(function: str, problem: RoutingProblem, num_rows: int):
    """What AITER's function and the reference choose for the same logits, each row in the order of its ids."""
    weights, inputs = MOE_ROUTE.make_inputs(problem, num_rows, torch.Generator().manual_seed(num_rows))
    plan = select(MOE_ROUTE, problem)
    assert plan.rows[0].implementation == f"AITER {function}", plan.passed_over
    routed = plan.prepare(weights)(*inputs), MOE_ROUTE.reference(problem, weights, *inputs)
    return tuple(MOE_ROUTE.comparable(outputs) for outputs in routed)


@pytest.mark.parametrize(("arch", "release"), EVERYWHERE)
@pytest.mark.parametrize("name", ROUTINGS)
def test_parity_of_moe_route_on_aiter(name, arch, release):
    with amd_machine(arch, release):
        for num_rows in (0, 1, 66):
            (weights, ids), (expected_weights, expected_ids) = route_both(*ROUTINGS[name], num_rows)
            assert torch.equal(ids, expected_ids)
            assert mismatch((weights, ids), (expected_weights, expected_ids), Tolerance(2e-6, 2e-5)) is None


@pytest.mark.parametrize("name", ["Qwen3", "DeepSeek-V2", "GLM-4 in bfloat16"])
def test_logits_may_lie_in_a_wider_matrix(name):
    _, problem = ROUTINGS[name]
    with amd_machine():
        weights, (logits,) = MOE_ROUTE.make_inputs(problem, 5, torch.Generator().manual_seed(3))
        wide = torch.full((5, problem.num_experts + 9), 30.0, dtype=problem.dtype)
        wide[:, 4 : 4 + problem.num_experts] = logits
        kernel = select(MOE_ROUTE, problem).prepare(weights)
        for got, expected in zip(kernel(wide[:, 4 : 4 + problem.num_experts]), kernel(logits), strict=True):
            assert torch.equal(got, expected)


def test_a_bias_may_be_a_column():
    _, problem = ROUTINGS["GLM-4 in bfloat16"]
    weights, (logits,) = MOE_ROUTE.make_inputs(problem, 5, torch.Generator().manual_seed(3))
    column = torch.stack((weights["correction_bias"], torch.zeros(160)), dim=1)[:, 0]
    with amd_machine():
        plan = select(MOE_ROUTE, problem)
        routed, expected = plan.prepare({"correction_bias": column})(logits), plan.prepare(weights)(logits)
    assert torch.equal(routed[1], expected[1])


def test_a_large_bias_chooses_in_bfloat16_as_exactly_as_in_float32():
    # The best sigmoid by less than bfloat16 holds of a bias around 4.
    problem = RoutingProblem(8, 1, BF16, "sigmoid", True, True)
    bias = torch.full((8,), 4.0)
    bias[5] += 2**-9
    with amd_machine():
        _, ids = select(MOE_ROUTE, problem).prepare({"correction_bias": bias})(torch.zeros(2, 8, dtype=BF16))
    assert ids.tolist() == [[5], [5]]


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (RoutingProblem(12, 3, FP32, correction_bias=True), "adds a bias to sigmoids"),
        (RoutingProblem(40, 6, FP32, num_groups=4, top_groups=2, group_score="top2"), "by its best expert"),
        (RoutingProblem(96, 2, FP32, num_groups=16, top_groups=2), "1, 2, 4 or 8 groups"),
        (RoutingProblem(40, 2, FP32, num_groups=8, top_groups=2), "reads 4 experts at a time"),
        (RoutingProblem(256, 65, FP32, num_groups=8, top_groups=4), "chooses up to 64"),
        (RoutingProblem(64, 4, FP32, "sigmoid", False, True), "renormalizes"),
        (
            RoutingProblem(64, 4, FP32, "sigmoid", True, True, num_groups=4, top_groups=2, group_score="top2"),
            "their first 4 experts only",
        ),
        (RoutingProblem(64, 4, FP32, "sigmoid", True, True, num_groups=8, top_groups=2), "two best experts"),
        (RoutingProblem(64, 4, torch.float64), "not torch.float64"),
    ],
)
def test_routing_that_aiter_would_get_wrong_goes_on_with_a_reason(problem, words):
    plan = select(MOE_ROUTE, problem, Platform.rocm("gfx942"))
    assert plan.rows[0].backend != "aiter"
    assert any(words in reason for backend, reason in plan.passed_over if backend.startswith("aiter"))


@pytest.mark.parametrize(
    ("num_experts", "groups", "release", "limit"),
    [
        (256, 8, "pypi", None),
        (384, 1, "git", None),
        (33, 1, "git", None),
        (384, 1, "pypi", 6784),
        (160, 8, "git", 6784),
        (64, 1, "pypi", 6784),
    ],
)
def test_more_rows_than_biased_groups_take_have_a_row_of_their_own(num_experts, groups, release, limit):
    problem = RoutingProblem(
        *(num_experts, 8, FP32, "sigmoid", True, True), num_groups=groups, top_groups=1, group_score="top2"
    )
    plan = select(MOE_ROUTE, problem, Platform.rocm("gfx950", release=release))
    assert [(row.backend, row.max_rows) for row in plan.rows] == [
        ("aiter", limit),
        *([("triton", None)] if limit else []),
    ]


EXPERTS = {
    "whole tiles": ExpertsProblem(4, 2, 256, 128, BF16),
    "float16": ExpertsProblem(5, 3, 128, 128, FP16),
    "Qwen3-235B over 8 ranks": ExpertsProblem(6, 4, 128, 192, BF16),
    "a tile and a bit": ExpertsProblem(3, 2, 384, 129, FP16),
    "less than a tile": ExpertsProblem(8, 1, 128, 24, BF16),
    "every expert": ExpertsProblem(2, 2, 128, 40, BF16),
    "some of other ranks": ExpertsProblem(2, 3, 128, 128, BF16, num_absent=4),
}


@pytest.mark.parametrize(("arch", "release"), EVERYWHERE)
@pytest.mark.parametrize("name", EXPERTS)
def test_parity_of_moe_experts_on_aiter(name, arch, release):
    problem = EXPERTS[name]
    with amd_machine(arch, release):
        plan = select(MOE_EXPERTS, problem)
        assert plan.rows[0].backend == "aiter", plan.passed_over
        for num_rows in (0, 2, 37):
            weights, inputs = MOE_EXPERTS.make_inputs(problem, num_rows, torch.Generator().manual_seed(num_rows))
            before = [tensor.clone() for tensor in inputs if tensor is not None]
            actual, expected = plan.prepare(weights)(*inputs), MOE_EXPERTS.reference(problem, weights, *inputs)
            assert mismatch(actual, expected, MOE_EXPERTS.tolerance(problem)) is None
            given = [tensor for tensor in inputs if tensor is not None]
            assert all(torch.equal(then, now) for then, now in zip(before, given, strict=True))


def test_inputs_may_be_slices_of_wider_rows():
    problem = EXPERTS["whole tiles"]
    weights, (x, gates, ids, _) = MOE_EXPERTS.make_inputs(problem, 6, torch.Generator().manual_seed(2))
    with amd_machine():
        kernel = select(MOE_EXPERTS, problem).prepare(weights)
        sliced = kernel(torch.cat((x, x), 1)[:, :256], torch.cat((gates, gates), 1)[:, :2], ids.t().contiguous().t())
        assert torch.equal(sliced, kernel(x, gates, ids))


def test_weights_may_lie_with_their_dimensions_in_another_order():
    problem = EXPERTS["whole tiles"]
    weights, inputs = MOE_EXPERTS.make_inputs(problem, 6, torch.Generator().manual_seed(2))
    turned = {name: x if x is None else x.transpose(1, 2).contiguous().transpose(1, 2) for name, x in weights.items()}
    with amd_machine():
        plan = select(MOE_EXPERTS, problem)
        assert torch.equal(plan.prepare(turned)(*inputs), plan.prepare(weights)(*inputs))


def test_packed_weights_take_the_bytes_that_the_plan_says():
    with amd_machine():
        plan = select(MOE_EXPERTS, EXPERTS["a tile and a bit"])
        weights, _ = MOE_EXPERTS.make_inputs(EXPERTS["a tile and a bit"], 1, torch.Generator().manual_seed(0))
        assert plan.prepare(weights).weight_bytes == plan.weight_bytes == 3 * 3 * 384 * 256 * 2


def test_inputs_of_other_sizes_than_planned_are_refused():
    with amd_machine():
        routing = select(MOE_ROUTE, ROUTINGS["Qwen3"][1]).prepare()
        with pytest.raises(TypeError, match="planned for"):
            routing(torch.zeros(3, 64, dtype=BF16))
        weights, (x, gates, ids, _) = MOE_EXPERTS.make_inputs(EXPERTS["float16"], 3, torch.Generator())
        with pytest.raises(TypeError, match="int32 ids"):
            select(MOE_EXPERTS, EXPERTS["float16"]).prepare(weights)(x, gates, ids.long())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"activation": "swiglu_oai"}, "MXFP4"),
        ({"bias": True}, "biases of experts"),
        ({"batch_invariant": True}, "number of tokens"),
        ({"dtype": FP32}, "not torch.float32"),
        ({"hidden_size": 2880}, "multiples of 128"),
    ],
)
def test_experts_that_aiter_would_get_wrong_go_on_with_a_reason(changes, words):
    sizes = {"num_experts": 4, "top_k": 2, "hidden_size": 256, "intermediate_size": 128, "dtype": BF16}
    plan = select(MOE_EXPERTS, ExpertsProblem(**(sizes | changes)), Platform.rocm("gfx950"))
    assert plan.rows[0].backend == "triton"
    assert words in dict(plan.passed_over)["aiter (AITER fused_moe)"]
