"""Quantized experts through AITER's emulator: the numbers of rows that are rounded before both products."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from amd_machine import amd_machine
from atom_kernels.aiter.moe.int4_codes import numbers_of, to_machine_int4
from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.formats import Float8, Integers, Mxfp4, pack_nibbles
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.operator import Tolerance
from atom_kernels.platform import Platform
from atom_kernels.select import select
from machine_rounding import rounded_rows

BF16 = torch.bfloat16
ROWS, TILES, BLOCKS, FP4 = Float8(), Float8(128, 128), Float8(1, 128), Mxfp4()
INT4 = Integers(4)
INPUTS = {ROWS: ROWS, TILES: BLOCKS, FP4: FP4, INT4: ROWS}
NAME = "aiter (AITER fused_moe of quantized experts)"
# Sizes of each format: whole tiles, and those that are filled up.
SIZES = {
    ROWS: ((256, 128), (128, 24), (384, 192)),
    TILES: ((128, 128), (384, 256)),
    FP4: ((256, 256), (512, 192), (256, 32)),
    INT4: ((256, 128), (128, 24), (384, 192)),
}
MACHINES = [("gfx942", "git"), ("gfx950", "git"), ("gfx942", "pypi"), ("gfx950", "pypi")]


def experts_problem(weights, hidden=256, size=256, **changes):
    fields = {"gate_up_format": weights, "down_format": weights, "input_format": INPUTS[weights]} | changes
    return ExpertsProblem(
        **({"num_experts": 5, "top_k": 2, "hidden_size": hidden, "intermediate_size": size, "dtype": BF16} | fields)
    )


def expected_of(problem, weights, x, gates, ids, base, arch, release):
    """Expert by expert, with the rows that the machine leaves."""
    out = torch.zeros(x.shape)
    held = problem.gate_up_format
    rows = rounded_rows(x, held, arch, release)
    for expert in range(problem.num_experts):
        tokens, slots = (ids == expert).nonzero(as_tuple=True)
        if tokens.numel():
            first = problem.matrices["gate_up"].numbers(weights, expert)
            second = problem.matrices["down"].numbers(weights, expert)
            gate, up = (rows[tokens] @ first.t()).chunk(2, dim=1)
            between = (torch.nn.functional.silu(gate) * up).to(BF16)
            # Zeros fill the last block: they are rounded with it.
            missing = -between.shape[1] % 128
            filled = torch.nn.functional.pad(between, (0, missing))
            between = rounded_rows(filled, held, arch, release)[:, : between.shape[1]]
            out.index_add_(0, tokens, between @ second.t() * gates[tokens, slots][:, None])
    return (out if base is None else out.to(BF16).float() + base.float()).to(BF16)


@pytest.mark.parametrize(("arch", "release"), MACHINES)
@pytest.mark.parametrize("weights", SIZES, ids=lambda one: one.name)
def test_quantized_experts_have_the_numbers_of_their_rounded_rows(weights, arch, release):
    if weights == FP4 and arch == "gfx942":
        return
    with amd_machine(arch, release), torch.inference_mode():
        for hidden, size in SIZES[weights]:
            problem = experts_problem(weights, hidden, size)
            plan = select(MOE_EXPERTS, problem)
            assert plan.rows[0].implementation == "AITER fused_moe of quantized experts", plan.passed_over
            for num_rows in (0, 4, 9):
                made, inputs = MOE_EXPERTS.make_inputs(problem, num_rows, torch.Generator().manual_seed(num_rows))
                before = [one.clone() for one in inputs if one is not None]
                got = plan.prepare(made)(*inputs)
                expected = expected_of(problem, made, *inputs, arch, release)
                # A value between two roundings of what lies between the products may fall to either side.
                assert mismatch(got, expected, Tolerance(6e-2, 3e-2)) is None, f"{hidden} x {size}, {num_rows} rows"
                assert (got.float() - expected.float()).abs().mean() < 4e-3 if num_rows else True
                assert all(
                    torch.equal(*pair) for pair in zip(before, (x for x in inputs if x is not None), strict=True)
                )


@pytest.mark.parametrize("weights", SIZES, ids=lambda one: one.name)
def test_packed_experts_take_the_bytes_that_the_plan_says(weights):
    with amd_machine("gfx950"):
        for hidden, size in SIZES[weights]:
            plan = select(MOE_EXPERTS, experts_problem(weights, hidden, size))
            made, _ = MOE_EXPERTS.make_inputs(plan.problem, 1, torch.Generator().manual_seed(0))
            assert plan.prepare(made).weight_bytes == plan.weight_bytes


def test_inputs_and_weights_may_be_slices():
    for weights, size in ((ROWS, 96), (TILES, 256), (FP4, 192), (INT4, 96)):
        with amd_machine("gfx950"), torch.inference_mode():
            problem = experts_problem(weights, size=size)
            made, (x, gates, ids, _) = MOE_EXPERTS.make_inputs(problem, 1, torch.Generator().manual_seed(0))
            apart = {
                name: None if one is None else one.transpose(1, 2).contiguous().transpose(1, 2)
                for name, one in made.items()
            }
            holes = {
                name: None if one is None else torch.stack((one, one), dim=-1)[..., 1] for name, one in made.items()
            }
            plan = select(MOE_EXPERTS, problem)
            wide = torch.cat((x, x, x), dim=1)
            shifted = torch.cat((x[:, :5], x), dim=1)[:, 5:]
            expected = plan.prepare(made)(x, gates, ids)
            assert torch.equal(plan.prepare(apart)(wide[:, :256], gates, ids), expected)
            assert torch.equal(plan.prepare(holes)(shifted, gates, ids), expected)


@pytest.mark.parametrize(
    ("weights", "changes", "arch", "words"),
    [
        (ROWS, {"input_format": None}, "gfx942", "rows of these experts are not rounded"),
        (
            ROWS,
            {"input_format": BLOCKS},
            "gfx942",
            "rounds rows to fp8 per row, and rows of these experts are rounded to",
        ),
        (ROWS, {"down_format": TILES}, "gfx942", "not in fp8 per row and fp8 128x128"),
        (ROWS, {"gate_up_format": Integers(8), "down_format": Integers(8)}, "gfx942", "mxfp4, not in int8 per row"),
        (FP4, {}, "gfx942", "MXFP4 is multiplied on gfx950, not on gfx942"),
        (ROWS, {"dtype": torch.float16}, "gfx942", "gives bfloat16, not torch.float16"),
        (ROWS, {"activation": "swiglu_oai"}, "gfx942", "not swiglu_oai"),
        (ROWS, {"bias": True}, "gfx942", "not silu and biases"),
        (ROWS, {"batch_invariant": True}, "gfx942", "number of tokens"),
        (ROWS, {"hidden_size": 192}, "gfx942", "tiles of 128, which 192 x 256"),
        (TILES, {"intermediate_size": 192}, "gfx942", "tiles of 128, which 256 x 192"),
        (INT4, {"input_format": None}, "gfx942", "rows of these experts are not rounded"),
        (INT4, {"hidden_size": 192}, "gfx942", "tiles of 128, which 192 x 256"),
        (INT4, {"gate_up_format": Integers(4, 32)}, "gfx950", "not in int4 per 32 and int4 per row"),
        (FP4, {"hidden_size": 384}, "gfx950", "tiles of 256, which 384 x 256"),
        (FP4, {"intermediate_size": 48}, "gfx950", "blocks of 32, which 48 does not fill"),
    ],
)
def test_experts_that_fused_moe_would_get_wrong_go_on_with_a_reason(weights, changes, arch, words):
    plan = select(MOE_EXPERTS, experts_problem(weights, **changes), Platform.rocm(arch))
    assert NAME not in {f"{row.backend} ({row.implementation})" for row in plan.rows}
    assert words in dict(plan.passed_over)[NAME]


def test_scales_of_int4_may_be_stored_in_bfloat16():
    stored = Integers(4, scale_dtype=BF16)
    narrow = experts_problem(INT4, gate_up_format=stored, down_format=stored)
    made, inputs = MOE_EXPERTS.make_inputs(narrow, 4, torch.Generator().manual_seed(0))
    wide = {name: one.float() if name.endswith("scale") else one for name, one in made.items() if one is not None}
    with amd_machine("gfx942"), torch.inference_mode():
        expected = select(MOE_EXPERTS, experts_problem(INT4)).prepare(wide)(*inputs)
        assert torch.equal(select(MOE_EXPERTS, narrow).prepare(made)(*inputs), expected)


def test_a_word_of_int4_has_its_even_columns_in_its_lower_half():
    rows = torch.arange(16, dtype=torch.uint8).repeat(1, 16, 2)
    with amd_machine("gfx942"):
        words = to_machine_int4(numbers_of(pack_nibbles(rows)))
    # The codes 0 to 7 stand for -8 to -1, and 8 to 15 for 0 to 7: nothing is in another order within 32 columns.
    assert [hex(word & 0xFFFFFFFF) for word in words.view(torch.int32)[0, 0, :2].tolist()] == [
        "0xfdb9eca8",
        "0x75316420",
    ]


@pytest.mark.parametrize("missing", ["fused_moe", "shuffle_weight", "e8m0_shuffle"])
def test_a_function_that_experts_lack_is_a_reason(missing):
    platform = Platform.rocm("gfx950")
    kept = tuple(one for one in platform.aiter.functions if one[0] != missing)
    plan = select(MOE_EXPERTS, experts_problem(FP4), replace(platform, aiter=replace(platform.aiter, functions=kept)))
    assert f"has no {missing}" in dict(plan.passed_over)[NAME]


@pytest.mark.parametrize(("arch", "release"), MACHINES)
def test_the_check_of_the_command_allows_what_rounding_leaves_and_no_more(arch, release):
    problems = [one for one in MOE_EXPERTS.parity_problems() if one.input_format is not None]
    with amd_machine(arch, release) as platform, torch.inference_mode():
        cases = list(parity_cases(replace(MOE_EXPERTS, parity_problems=lambda: problems), platform, "aiter"))
        assert len(cases) == (4 if arch == "gfx950" else 3) * len(MOE_EXPERTS.parity_rows)
        for case in cases:
            got, expected = case.run(), case.expected()
            assert mismatch(got, expected, case.tolerance) is None, case.label
            if expected.abs().max() > 4:
                wrong = got * (1.2 if "fp8" in case.label else 0.5)
                assert mismatch(wrong, expected, case.tolerance) is not None, case.label


def test_minus_zero_in_a_published_expert_spoils_no_sum():
    with amd_machine("gfx942"), torch.inference_mode():
        problem = experts_problem(ROWS)
        made, inputs = MOE_EXPERTS.make_inputs(problem, 4, torch.Generator().manual_seed(0))
        made["down"].view(torch.uint8)[:, 3, ::2] = 0x80
        assert not select(MOE_EXPERTS, problem).prepare(made)(*inputs).isnan().any()
