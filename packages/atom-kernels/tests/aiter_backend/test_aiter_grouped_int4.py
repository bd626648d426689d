"""Experts in int4 by groups through AITER's emulator: published codes and scales, and rows that stay as they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from aiter_calls import recorded_calls
from amd_machine import amd_machine
from atom_kernels.cases import mismatch
from atom_kernels.formats import Float8, Integers
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.operator import Tolerance
from atom_kernels.platform import Platform
from atom_kernels.select import select

BF16 = torch.bfloat16
HELD = Integers(4, 32, scale_dtype=BF16)
NAME = "aiter (AITER fused_moe of int4 in groups)"


def experts_problem(hidden: int = 256, size: int = 256, **changes: Any) -> ExpertsProblem:
    fields = {"gate_up_format": HELD, "down_format": HELD} | changes
    return ExpertsProblem(
        **({"num_experts": 5, "top_k": 2, "hidden_size": hidden, "intermediate_size": size, "dtype": BF16} | fields)
    )


def made_for(problem: ExpertsProblem, rows: int) -> Any:
    return MOE_EXPERTS.make_inputs(problem, rows, torch.Generator().manual_seed(rows))


def expected_of(problem: ExpertsProblem, weights: Any, x: Any, gates: Any, ids: Any, base: Any) -> torch.Tensor:
    """Expert by expert in float32, rounded once between the products."""
    out = torch.zeros(x.shape)
    for expert in range(problem.num_experts):
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        first, second = (problem.matrices[name].numbers(weights, expert) for name in ("gate_up", "down"))
        gate, up = (x[tokens].float() @ first.t()).chunk(2, dim=1)
        between = (torch.nn.functional.silu(gate) * up).to(BF16).float()
        out.index_add_(0, tokens, between @ second.t() * gates[tokens, slots][:, None])
    return (out if base is None else out.to(BF16).float() + base.float()).to(BF16)


# The last is a rank's part of an expert of Kimi-K2-Thinking at -tp 8, in width.
@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("hidden", "size"), [(256, 256), (512, 32), (256, 288), (768, 480), (7168, 256)])
def test_experts_have_the_numbers_of_their_published_codes(hidden: int, size: int, arch: str):
    problem = experts_problem(hidden, size)
    with amd_machine(arch), torch.inference_mode(), recorded_calls() as calls:
        plan = select(MOE_EXPERTS, problem)
        assert plan.rows[0].implementation == "AITER fused_moe of int4 in groups", plan.passed_over
        for num_rows in (0, 1, 9):
            made, inputs = made_for(problem, num_rows)
            before = [None if one is None else one.clone() for one in inputs]
            kernel = plan.prepare(made)
            got, expected = kernel(*inputs), expected_of(problem, made, *inputs)
            assert mismatch(got, expected, Tolerance(0.01, 0.01)) is None, num_rows
            assert kernel.weight_bytes == plan.weight_bytes
            assert all(one is None or torch.equal(one, kept) for one, kept in zip(inputs, before, strict=True))
    assert "fused_moe" in calls.names


def test_experts_that_are_elsewhere_add_nothing():
    problem = experts_problem(num_absent=3)
    made, inputs = made_for(problem, 9)
    with amd_machine(), torch.inference_mode():
        got = select(MOE_EXPERTS, problem).prepare(made)(*inputs)
    assert mismatch(got, expected_of(problem, made, *inputs), Tolerance(0.01, 0.01)) is None


def test_inputs_and_weights_may_be_slices():
    problem = experts_problem(size=96)
    made, (x, gates, ids, _) = made_for(problem, 3)
    given = {name: one for name, one in made.items() if one is not None}
    apart = {name: one.transpose(1, 2).contiguous().transpose(1, 2) for name, one in given.items()}
    holes = {name: torch.stack((one, one), dim=-1)[..., 1] for name, one in given.items()}
    shifted = torch.cat((x[:, :5], x), dim=1)[:, 5:]
    with amd_machine(), torch.inference_mode():
        plan = select(MOE_EXPERTS, problem)
        expected = plan.prepare(given)(x, gates, ids)
        assert torch.equal(plan.prepare(apart)(x, gates, ids), expected)
        assert torch.equal(plan.prepare(holes)(shifted, gates, ids), expected)


REFUSALS = [
    ({"gate_up_format": Integers(4, 64, scale_dtype=BF16)}, "not int4 per 32 and int4 per 64 with others"),
    ({"gate_up_format": Integers(4, 32), "down_format": Integers(4, 32)}, "with scales in bfloat16, not int4 per 32"),
    ({"down_format": Float8()}, "not fp8 per row and int4 per 32"),
    ({"activation": "swiglu_oai"}, "silu without biases, not swiglu_oai"),
    ({"bias": True}, "not silu and biases"),
    ({"dtype": torch.float16}, "takes and gives bfloat16, not torch.float16"),
    ({"batch_invariant": True}, "by the number of tokens"),
    ({"hidden_size": 384}, "whole 256, and whole groups of 32, not 384 x 256"),
    ({"intermediate_size": 80}, "whole groups of 32, not 256 x 80"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSALS, ids=[words for _, words in REFUSALS])
def test_experts_that_aiter_would_get_wrong_go_on_with_a_reason(changes: dict[str, Any], words: str):
    plan = select(MOE_EXPERTS, experts_problem(**changes), Platform.rocm("gfx950"))
    assert NAME not in {f"{row.backend} ({row.implementation})" for row in plan.rows}
    assert words in dict(plan.passed_over)[NAME]


@pytest.mark.parametrize(
    "missing", ["fused_moe", "shuffle_weight", "pack_int8_to_packed_int4", "shuffle_scale_for_int4"]
)
def test_a_function_that_it_lacks_is_a_reason(missing: str):
    platform = Platform.rocm("gfx950")
    kept = tuple(one for one in platform.aiter.functions if one[0] != missing)
    plan = select(MOE_EXPERTS, experts_problem(), replace(platform, aiter=replace(platform.aiter, functions=kept)))
    assert f"has no {missing}" in dict(plan.passed_over)[NAME]


def test_the_release_on_pypi_packs_no_int4_by_groups():
    plan = select(MOE_EXPERTS, experts_problem(), Platform.rocm("gfx950", release="pypi"))
    assert "has no pack_int8_to_packed_int4" in dict(plan.passed_over)[NAME]
