"""Linears of packed weights in Triton: every format, cut and number of rows gives the numbers of the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset, unpack_nibbles
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.triton.backend import PACKED_SKINNY_BACKEND
from atom_kernels.linear.triton.one_row import int4
from atom_kernels.linear.triton.packed_product import made_plain, packed_linear
from atom_kernels.linear.triton.packed_weights import PLANE, TILE, pack, packing_of, planes, why_not_packed
from atom_kernels.linear.triton.rounded_rows import rounded_rows
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig, block_of_inputs
from atom_kernels.linear.triton.skinny_linear import SkinnyLinear
from atom_kernels.operator import Tolerance
from atom_kernels.platform import Platform, detect_platform
from atom_kernels.select import select
from gpu_assembly import run_assembly
from told_formats import Told

DEVICE = detect_platform().device
FORMATS = (
    *(Float8(), Float8(128, 128), Integers(8), Integers(8, 32), Integers(4), Integers(4, 64), Mxfp4(), Nvfp4()),
    Integers(4, 16, Offset.ZERO_POINT),
    *(Integers(4, 32, offset, torch.float16) for offset in Offset),
)
# The interpreter computes with numpy, which says where exp() leaves float32: sigmoid is 0 there, as it should be.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")

WITH_NEIGHBORS = dataclasses.replace(
    LINEAR, parity_problems=lambda: tuple(problem for problem in LINEAR.parity_problems() if problem.neighbors)
)


def make_case(problem, num_rows):
    weights, inputs = LINEAR.make_inputs(problem, num_rows, torch.Generator().manual_seed(num_rows))
    here = {name: None if tensor is None else tensor.to(DEVICE) for name, tensor in weights.items()}
    moved = tuple(x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in inputs)
    return here, moved, LINEAR.reference(problem, weights, *inputs)


def test_every_format_agrees_with_the_reference():
    count = 0
    for case in parity_cases(WITH_NEIGHBORS, detect_platform(), only_backend="triton"):
        is_packed = "packed weight" in case.backend or "made plain" in case.backend
        if is_packed and case.label.endswith("rows=1" if "float32" in case.label.split("bias")[0] else "rows=5"):
            problem = mismatch(case.run(), case.expected(), case.tolerance)
            assert problem is None, f"{case.label}: {problem}"
            count += 1
    # Formats, dtypes, backends.
    assert count == 11 * 2 * 2


@pytest.mark.parametrize(
    "weight_format",
    [Float8(), Float8(128, 128), Integers(8, 32), Integers(4, 32, Offset.MINIMUM), Mxfp4(), Nvfp4()],
    ids=lambda one: one.name,
)
@pytest.mark.parametrize(("num_rows", "split_k"), [(1, 3), (3, 2), (19, 1)])
def test_any_cut_of_inputs_and_rows_gives_the_same_sums(weight_format, num_rows, split_k):
    problem = LinearProblem(352, 32, torch.float32, bias=True, gated=True, weight_format=weight_format, neighbors=True)
    weights, inputs, expected = make_case(problem, num_rows)
    block_k = block_of_inputs(packing_of(weight_format, 352), 128)
    config = SkinnyConfig(1 if num_rows == 1 else 16, 16, block_k, split_k)
    kernel = SkinnyLinear(problem, pack(problem, weights), config)
    for _ in range(2):  # the count of arrivals must be back at zero
        assert mismatch(kernel(*inputs), expected, LINEAR.tolerance(problem)) is None


@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda one: one.name)
def test_a_weight_made_plain_is_what_its_format_holds(weight_format):
    problem = LinearProblem(288, 40, torch.float32, weight_format=weight_format, neighbors=True)
    weights, _, _ = make_case(problem, 1)
    expected = weight_format.dequantize(weights, 288)
    assert torch.allclose(made_plain(problem, pack(problem, weights)), expected, rtol=1e-6, atol=1e-7)


def test_words_hold_four_planes_of_neighboring_inputs():
    packed = torch.randint(0, 256, (3, 200 // 2), dtype=torch.uint8)
    words, codes = planes(packed, "int4").int() & 0xFFFF, unpack_nibbles(packed).int()
    assert words.shape == (3, 2 * PLANE)
    for column in range(200):
        word = words[:, column // TILE * PLANE + column % PLANE]
        assert torch.equal(word >> 4 * (column % TILE // PLANE) & 15, codes[:, column])
    assert not (words[:, PLANE + 200 % PLANE :] >> 8).any()  # what fills up the last tile


def test_instructions_of_a_gpu_find_both_codes_of_two_words_in_each_plane():
    """The interpreter has no assembly: its words are run here."""
    packed = torch.randint(0, 256, (2, TILE // 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    words, codes = planes(packed, "int4").view(torch.int32).tolist(), unpack_nibbles(packed)
    for row in range(2):
        for lane in range(PLANE):
            for plane in range(TILE // PLANE):
                at = lane % 2 * (TILE // PLANE) + plane
                found = run_assembly(int4.CODE_IN_PLACE.value[at], {"$1": words[row][lane // 2]})["$0"]
                number = torch.tensor(found, dtype=torch.int32).view(torch.float32).item()
                assert number - int4.ADDED.value[at] == codes[row, plane * PLANE + lane]


def test_rows_may_be_rounded_with_a_scale_for_each_group_of_inputs():
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(2)) * torch.tensor([[1.0], [100], [0]])
    x[:, 128:] *= 50
    codes, scale = rounded_rows(x.to(DEVICE), group=64)
    expected = Float8(1, 64).quantize(x)["scale"]
    assert torch.allclose(scale.cpu(), expected, rtol=1e-6)
    off = (codes.float().cpu() * expected.repeat_interleave(64, 1)[:, :200]) - x
    assert (off.abs() <= x.abs() / 16 + 1e-9).float().mean() > 0.95


def test_rows_for_a_library_are_a_multiple_of_what_it_reads_and_scales_of_a_group_lie_side_by_side():
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    codes, scale = rounded_rows(x, group=64)
    more_codes, by_group = rounded_rows(x, group=64, multiple=4)
    assert more_codes.shape == (4, 200)
    assert by_group.stride() == (1, 4)
    assert torch.equal(more_codes[:3].float(), codes.float())
    assert torch.equal(by_group[:3], scale)


@pytest.mark.parametrize("normed", [False, True])
def test_rounded_rows_have_their_own_scales(normed):
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(1)) * torch.tensor([[1.0], [100], [1e-3], [0], [7]])
    norm = torch.linspace(0.5, 1.5, 96) if normed else None
    codes, scale = rounded_rows(x.to(DEVICE), None if norm is None else norm.to(DEVICE), 1e-6, 0.5)
    rows = x if norm is None else torch.nn.functional.rms_norm(x, (96,), norm + 0.5, 1e-6)
    assert codes.dtype is torch.float8_e4m3fn
    assert torch.allclose(scale.cpu(), Float8().quantize(rows)["scale"], rtol=1e-5)
    # Triton's interpreter rounds the last sixteenth below a power of two to half of it.
    off = (codes.float() * scale).cpu() - rows
    assert (off.abs() <= rows.abs() / 16 + 1e-9).float().mean() > 0.95
    assert torch.equal(codes.float().cpu()[3], torch.zeros(96))


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("num_rows", [3, 20])
def test_rows_that_are_rounded_first_give_products_with_their_scales(num_rows, gated):
    problem = LinearProblem(
        256, 64, torch.float32, gated=gated, weight_format=Float8(), input_format=Float8(), bias=True, neighbors=True
    )
    weights, (x, *_), _ = make_case(problem, num_rows)
    x = (x * 4).round().clamp(-8, 8) * torch.arange(1, num_rows + 1, device=DEVICE)[:, None]
    x[:, 0] = 448.0 / 16 * torch.arange(1, num_rows + 1, device=DEVICE)  # a scale of 1/16 times the row's number: exact
    expected = LINEAR.reference(problem, weights, x)
    config = SkinnyConfig(16, 16, 128, 2, norm_apart=True, rounds=True)
    got = SkinnyLinear(problem, pack(problem, weights), config)(x)
    assert mismatch(got, expected, Tolerance(1e-2, 1e-3)) is None
    without = dataclasses.replace(problem, input_format=None)
    assert mismatch(got, LINEAR.reference(without, weights, x), Tolerance(1e-2, 1e-3)) is None


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("num_columns", [256, 320])
def test_rows_that_are_rounded_in_groups_give_products_with_the_scales_of_both(num_columns, gated):
    inputs = Float8(1, 128)
    problem = LinearProblem(
        num_columns, 96, torch.float32, gated=gated, weight_format=Float8(128, 128), input_format=inputs, neighbors=True
    )
    weights, (x, *_), _ = make_case(problem, 3)
    x = (x * 4).round().clamp(-7, 7)
    # Every group has a scale of its own, with which all of its numbers are exact.
    for group, first in enumerate(range(0, num_columns, 128)):
        x[:, first] = 7.0
        x[:, first : first + 128] *= 2.0**group * 448.0 / 7 / 64
    expected = LINEAR.reference(problem, weights, x)
    for config in (SkinnyConfig(16, 16, 128, 2, rounds=True), SkinnyConfig(16, 32, 64, 1, rounds=True)):
        got = SkinnyLinear(problem, pack(problem, weights), config)(x)
        assert mismatch(got, expected, Tolerance(1e-2, 1e-3)) is None
    without = dataclasses.replace(problem, input_format=None)
    assert mismatch(expected, LINEAR.reference(without, weights, x), Tolerance(1e-2, 1e-3)) is None


@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda one: one.name)
def test_codes_may_be_scaled_before_the_product_instead_of_its_sums(weight_format):
    problem = LinearProblem(288, 24, torch.float32, bias=True, gated=True, weight_format=weight_format, neighbors=True)
    weights, inputs, expected = make_case(problem, 19)
    block_k = block_of_inputs(packing_of(weight_format, 288), 128)
    kernel = SkinnyLinear(problem, pack(problem, weights), SkinnyConfig(32, 16, block_k, 2, makes_weights=True), 19)
    assert mismatch(kernel(*inputs), expected, LINEAR.tolerance(problem)) is None


class PowersBesideIntegers(Integers):
    """Codes of eight bits, whose scales are exponents of two."""

    def __init__(self):
        super().__init__(8, 32, scale_dtype=torch.uint8)


@pytest.mark.parametrize(
    ("weight_format", "reason"),
    [
        (None, "for packed weights"),
        (Integers(4, 48), "reads groups of 16, 32, 64 or multiples of 128 inputs, not 48"),
        (Float8(128, 80), "reads tiles of multiples of 32 inputs, not 80"),
        (Integers(8, 32, Offset.MINIMUM), "reads codes of eight bits without a minimum"),
        (PowersBesideIntegers(), "reads exponents of two as scales of 32 codes of e2m1 alone"),
    ],
)
def test_what_triton_cannot_read_is_refused(weight_format, reason):
    problem = LinearProblem(480, 64, torch.bfloat16, weight_format=weight_format, neighbors=True)
    assert why_not_packed(problem) == reason
    assert reason in (PACKED_SKINNY_BACKEND.supports(problem, Platform.nvidia("sm_90")) or "")


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        (Platform.nvidia("sm_80"), "Triton has fp8 from sm_89 on, not on sm_80"),
        (Platform.rocm("gfx942"), None),
        (Platform.nvidia("sm_89"), None),
    ],
    ids=lambda one: getattr(one, "arch", None),
)
def test_fp8_is_left_to_gpus_that_have_it(platform, reason):
    problem = LinearProblem(512, 64, torch.bfloat16, weight_format=Float8(), neighbors=True)
    assert PACKED_SKINNY_BACKEND.supports(problem, platform) == reason


@pytest.mark.parametrize("num_rows", [1, 20])
def test_a_format_of_a_class_that_nothing_knows_is_read_by_what_it_says_of_itself(num_rows):
    for one in (Integers(4, 32, Offset.ZERO_POINT), Float8(128, 128), Integers(8)):
        problem = LinearProblem(256, 64, torch.float32, weight_format=Told(one), neighbors=True)
        weights, inputs, expected = make_case(problem, num_rows)
        plan = select(LINEAR, problem, only_backend="triton")
        torch.testing.assert_close(plan.prepare(weights)(*inputs).cpu(), expected, atol=2e-3, rtol=2e-3)


def test_packed_weights_take_no_more_memory_than_a_plan_says():
    for weight_format in FORMATS:
        problem = LinearProblem(352, 128, torch.bfloat16, bias=True, weight_format=weight_format, neighbors=True)
        plan = select(LINEAR, problem, only_backend="triton")
        assert plan.prepare(make_case(problem, 1)[0]).weight_bytes == plan.weight_bytes, weight_format.name


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [1, 7, 32, 100, 300])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("weight_format", FORMATS, ids=lambda one: one.name)
def test_formats_agree_at_the_sizes_of_models_on_a_gpu(weight_format, gated, num_rows):
    problem = LinearProblem(2048, 1280, torch.bfloat16, gated=gated, weight_format=weight_format, neighbors=True)
    weights, inputs, expected = make_case(problem, num_rows)
    got = select(LINEAR, problem).prepare(weights)(*inputs)
    assert mismatch(got, expected.to(DEVICE), LINEAR.tolerance(problem)) is None


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [7, 100, 300])
def test_rounded_rows_agree_within_their_rounding_on_a_gpu(num_rows):
    problem = LinearProblem(4096, 6144, torch.bfloat16, weight_format=Float8(), input_format=Float8(), neighbors=True)
    weights, inputs, expected = make_case(problem, num_rows)
    got = select(LINEAR, problem).prepare(weights)(*inputs)
    # One code of e4m3 is a sixteenth of the number: seldom two roundings of a row disagree.
    assert mismatch(got, expected.to(DEVICE), Tolerance(0.3, 3e-2)) is None
    linear = packed_linear(problem.product, pack(problem, weights))
    assert linear(inputs[0]).shape == (num_rows, 6144)
