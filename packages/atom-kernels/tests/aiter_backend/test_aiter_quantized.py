"""Quantized linears through AITER's emulator: the numbers of rows that are rounded as the machine does it."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch

from amd_machine import amd_machine
from atom_kernels.aiter.library import Library
from atom_kernels.aiter.quantized.float8_codes import to_machine_float8
from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.asked_rows import ROWS_NOTE, with_rows_asked_for
from atom_kernels.operator import Tolerance
from atom_kernels.platform import Platform
from atom_kernels.select import plan_with, select
from machine_rounding import rounded_heads, rounded_rows

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
MACHINES = [("gfx942", "git"), ("gfx950", "git"), ("gfx942", "pypi"), ("gfx950", "pypi")]
ROWS, TILES, BLOCKS, INT8, FP4 = Float8(), Float8(128, 128), Float8(1, 128), Integers(8), Mxfp4()
INPUTS = {ROWS: ROWS, TILES: BLOCKS, INT8: INT8, FP4: FP4}
# The products of AITER by format, with the shapes (inputs, outputs) that each is given.
PRODUCTS = {
    "gemm_a8w8_bpreshuffle": (ROWS, ((192, 16), (256, 48), (2048, 576), (1152, 80))),
    "gemm_a8w8 of rows in fp8": (ROWS, ((16, 8), (272, 24), (176, 64))),
    "gemm_a8w8_blockscale_bpreshuffle": (TILES, ((128, 16), (640, 576), (256, 144))),
    "gemm_a8w8_blockscale of": (TILES, ((128, 136), (384, 8))),
    "gemm_a8w8 of rows in int8": (INT8, ((16, 8), (272, 24), (1024, 40))),
    "gemm_a4w4": (FP4, ((256, 128), (768, 384), (1024, 256))),
    "gemm_a16wfp4": (FP4, ((512, 40), (1536, 200), (1024, 7))),
}


def linear_problem(weights, inputs_size, outputs, dtype=BF16, bias=False, **changes):
    return LinearProblem(
        inputs_size, outputs, dtype, bias, weight_format=weights, input_format=INPUTS[weights], **changes
    )


def serves(name: str, arch: str, release: str) -> bool:
    weights, _ = PRODUCTS[name]
    return weights != FP4 or (arch == "gfx950" and (name, release) != ("gemm_a16wfp4", "pypi"))


def run_and_expect(problem, num_rows, arch, release, name):
    generator = torch.Generator().manual_seed(num_rows)
    weights, _ = LINEAR.make_inputs(problem, 1, generator)
    spread = torch.exp2(torch.randint(-3, 4, (num_rows, 1), generator=generator).float())
    x = (torch.randn(num_rows, problem.in_features, generator=generator) * spread).to(problem.dtype)
    plan = select(LINEAR, problem)
    assert name in plan.rows[0].implementation, plan.passed_over
    rows = rounded_rows(x, problem.weight_format, arch, release)
    # This one rounds them as it reads them, as products of heads do.
    rows = rounded_heads(x, "mxfp4", release) if name == "gemm_a16wfp4" else rows
    expected = rows @ problem.weight_format.dequantize(weights, problem.in_features).t()
    if weights["bias"] is not None:
        expected = expected + weights["bias"].float()
    return plan.prepare(weights)(x), expected.to(problem.dtype)


@pytest.mark.parametrize(("arch", "release"), MACHINES)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_has_the_numbers_of_its_rounded_rows(name, arch, release):
    weights, shapes = PRODUCTS[name]
    if not serves(name, arch, release):
        return
    with amd_machine(arch, release), torch.inference_mode():
        for index, (size, outputs) in enumerate(shapes):
            dtype = FP16 if index == 1 and weights != FP4 else BF16
            problem = linear_problem(weights, size, outputs, dtype, bias=index % 2 == 1)
            for num_rows in (1, 3, 33):
                got, expected = run_and_expect(problem, num_rows, arch, release, name)
                # One rounding of the result, and another where a bias comes after it. Few rounded values lie between.
                assert mismatch(got, expected, Tolerance(2e-2, 1.6e-2)) is None, f"{size} x {outputs}, {num_rows} rows"


@pytest.mark.parametrize(("arch", "release"), MACHINES)
def test_every_product_passes_the_check_of_the_command(arch, release):
    with amd_machine(arch, release) as platform, torch.inference_mode():
        passed = set()
        problems = [problem for problem in LINEAR.parity_problems() if problem.input_format is not None]
        for case in parity_cases(
            replace(LINEAR, parity_problems=lambda: problems, parity_rows=(1, 5)), platform, "aiter"
        ):
            assert mismatch(case.run(), case.expected(), case.tolerance) is None, case.label
            passed.add(case.backend)
        assert len(passed) == {("gfx950", "git"): 7, ("gfx950", "pypi"): 6}.get((arch, release), 5)


def test_what_the_check_multiplies_is_the_same_number_in_every_float_format():
    for problem in LINEAR.parity_problems():
        if problem.input_format is not None and problem.input_format != INT8:
            _, (x,) = LINEAR.make_inputs(problem, 9, torch.Generator().manual_seed(0))
            for one in (ROWS, FP4):
                if x.shape[1] % 32 == 0:
                    assert torch.equal(one.dequantize(one.quantize(x.float()), x.shape[1]), x.float())


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_linear_between_its_neighbors_is_served_by_the_same_product(name):
    weights, ((_, _), (size, outputs), *_) = PRODUCTS[name]
    outputs = outputs // 2 if weights != FP4 and outputs % 32 == 0 else outputs
    with amd_machine("gfx950"), torch.inference_mode():
        for gated in (False, True):
            problem = LinearProblem(
                size,
                outputs,
                BF16,
                True,
                weight_format=weights,
                input_format=INPUTS[weights],
                gated=gated,
                neighbors=True,
            )
            plan = select(LINEAR, problem)
            assert plan.rows[0].backend == "aiter"
            made, _ = LINEAR.make_inputs(problem, 3, torch.Generator().manual_seed(0))
            alone = select(LINEAR, problem.product).prepare(made)
            kernel = plan.prepare(made)
            x, residual, norm = (
                torch.randn(3, size).to(BF16),
                torch.randn(3, outputs).to(BF16),
                torch.ones(size).to(BF16),
            )
            product = alone(x)
            if gated:
                gate, up = product.float().chunk(2, dim=-1)
                product = (torch.nn.functional.silu(gate) * up).to(BF16)
            assert mismatch(kernel(x, None, 0.0, 0.0, residual), product + residual, Tolerance(2e-2, 1.6e-2)) is None
            normed = kernel(x * 100, norm, 1e-6, 0.0, None)
            assert normed.abs().max() < 100 * product.abs().max()


def test_weights_of_mi300x_have_the_published_values_in_its_own_format():
    published = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scale = torch.tensor([[0.5], [3.0]])
    codes, doubled = to_machine_float8(published, scale, Platform.rocm("gfx942"))
    assert codes.dtype is torch.float8_e4m3fnuz
    assert torch.equal(doubled, torch.tensor([[1.0], [6.0]]))
    is_number = ~published.float().isnan()
    assert torch.equal(codes.float()[is_number] * 2, published.float()[is_number])
    assert codes.float()[~is_number].isnan().all()
    assert codes.view(torch.uint8)[0x80] == 0


def test_weights_of_mi355x_stay_as_they_are():
    published, scale = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn), torch.ones(1, 1)
    codes, same = to_machine_float8(published, scale, Platform.rocm("gfx950"))
    assert codes is published
    assert same is scale


@pytest.mark.parametrize("weights", [ROWS, TILES])
def test_minus_zero_in_a_published_weight_spoils_no_sum(weights):
    problem = linear_problem(weights, 256, 32)
    with amd_machine("gfx942"), torch.inference_mode():
        made, _ = LINEAR.make_inputs(problem, 1, torch.Generator().manual_seed(0))
        made["weight"].view(torch.uint8)[3, ::2] = 0x80
        x = torch.randn(4, 256).to(BF16)
        assert not select(LINEAR, problem).prepare(made)(x).isnan().any()


@pytest.mark.parametrize("name", PRODUCTS)
def test_inputs_may_be_slices_have_more_dimensions_or_no_rows(name):
    weights, ((size, outputs), *_) = PRODUCTS[name]
    problem = linear_problem(weights, size, outputs)
    with amd_machine("gfx950"), torch.inference_mode():
        made, _ = LINEAR.make_inputs(problem, 1, torch.Generator().manual_seed(0))
        kernel = select(LINEAR, problem).prepare(made)
        wide = torch.randn(2, 3, size + 24).to(BF16)
        inside = wide[..., 5:-19]
        before = wide.clone()
        assert torch.equal(kernel(inside).flatten(0, 1), kernel(inside.flatten(0, 1)))
        assert torch.equal(kernel(inside[:1, :1]), kernel(inside[:1, :1].clone()))
        assert torch.equal(kernel(wide[0, :, :size]), kernel(wide[0, :, :size].clone()))
        assert kernel(inside[:0]).shape == (0, 3, outputs)
        assert torch.equal(wide, before)
        with pytest.raises(TypeError, match="was planned for"):
            kernel(wide)
        with pytest.raises(TypeError, match="was planned for"):
            kernel(inside.float())


@pytest.mark.parametrize("name", PRODUCTS)
def test_weights_may_be_slices(name):
    weights, ((_, _), (size, outputs), *_) = PRODUCTS[name]
    problem = linear_problem(weights, size, outputs, bias=True)
    with amd_machine("gfx950"), torch.inference_mode():
        made, _ = LINEAR.make_inputs(problem, 1, torch.Generator().manual_seed(0))
        apart = {key: torch.stack((tensor, tensor), dim=-1)[..., 1] for key, tensor in made.items()}
        x = torch.randn(3, size).to(BF16)
        plan = select(LINEAR, problem)
        assert torch.equal(plan.prepare(apart)(x), plan.prepare(made)(x))


@pytest.mark.parametrize("name", PRODUCTS)
def test_packed_weights_take_the_bytes_that_the_plan_says(name):
    weights, ((size, outputs), *_) = PRODUCTS[name]
    with amd_machine("gfx950"):
        problem = linear_problem(weights, size, outputs)
        plan = select(LINEAR, problem)
        made, _ = LINEAR.make_inputs(problem, 1, torch.Generator().manual_seed(0))
        assert plan.prepare(made).weight_bytes == plan.weight_bytes


def test_a_row_of_zeros_is_a_row_of_zeros():
    for name, (weights, ((size, outputs), *_)) in PRODUCTS.items():
        with amd_machine("gfx950"), torch.inference_mode():
            problem = linear_problem(weights, size, outputs)
            made, _ = LINEAR.make_inputs(problem, 1, torch.Generator().manual_seed(0))
            assert not select(LINEAR, problem).prepare(made)(torch.zeros(2, size, dtype=BF16)).any(), name


@pytest.mark.parametrize(
    ("problem", "arch", "words"),
    [
        (LinearProblem(256, 128, BF16, weight_format=ROWS), "gfx942", "rows of this linear are not rounded"),
        (
            LinearProblem(256, 128, BF16, weight_format=ROWS, input_format=BLOCKS),
            "gfx942",
            "rounds rows to fp8 per row, and rows of this linear are rounded to fp8 1x128",
        ),
        (linear_problem(ROWS, 128, 16), "gfx942", "whole tiles of 16 x 64, with 192 inputs at least, not 16 x 128"),
        (linear_problem(ROWS, 208, 16), "gfx942", "tiles of 16 x 64"),
        (linear_problem(ROWS, 256, 24), "gfx942", "not 24 x 256"),
        (linear_problem(ROWS, 40, 16), "gfx942", "loads 16 inputs and stores 8 outputs at once, not 16 x 40"),
        (linear_problem(ROWS, 64, 12), "gfx942", "not 12 x 64"),
        (linear_problem(ROWS, 256, 128, FP32), "gfx942", "bfloat16 or float16, not torch.float32"),
        (linear_problem(ROWS, 256, 128, out_dtype=FP32), "gfx942", "not torch.bfloat16 to torch.float32"),
        (linear_problem(TILES, 192, 128), "gfx942", "blocks of 128 inputs, which 192 inputs do not fill"),
        (linear_problem(TILES, 128, 136), "gfx942", "multiples of 16 outputs, not 136"),
        (linear_problem(TILES, 128, 12), "gfx942", "not 12 x 128"),
        (linear_problem(INT8, 40, 16), "gfx942", "loads 16 inputs"),
        (linear_problem(FP4, 256, 128), "gfx942", "MXFP4 is multiplied on gfx950, not on gfx942"),
        (linear_problem(FP4, 256, 128, FP16), "gfx950", "gives bfloat16, not torch.float16"),
        (linear_problem(FP4, 128, 128), "gfx950", "128 outputs and 256 inputs, which 128 x 128 do not fill"),
        (linear_problem(FP4, 256, 64), "gfx950", "which 64 x 256 do not fill"),
        (linear_problem(FP4, 512, 64), "gfx942", "gemm_a16wfp4 multiplies MXFP4 on gfx950, not on gfx942"),
        (linear_problem(FP4, 512, 64, FP16), "gfx950", "is called for bfloat16, not for torch.float16"),
        (linear_problem(FP4, 768, 64), "gfx950", "whole tiles of 512 inputs, not 768"),
        (LinearProblem(512, 64, BF16, weight_format=FP4), "gfx950", "rows of this linear are not rounded"),
        (LinearProblem(256, 128, BF16, weight_format=Nvfp4()), "gfx950", "weights in mxfp4, not in nvfp4"),
        (LinearProblem(256, 128, BF16), "gfx950", "weights in fp8 per row, not in bfloat16"),
    ],
)
def test_what_a_product_cannot_do_is_a_reason(problem, arch, words):
    plan = select(LINEAR, problem, Platform.rocm(arch))
    reasons = [reason for backend, reason in plan.passed_over if backend.startswith("aiter")]
    assert any(words in reason for reason in reasons), reasons


@pytest.mark.parametrize("weights", [ROWS, TILES, INT8, FP4])
def test_nothing_that_depends_on_the_number_of_rows_serves_batch_invariance(weights):
    platform = replace(Platform.rocm("gfx950"), batch_invariant=True)
    assert {row.backend for row in select(LINEAR, linear_problem(weights, 256, 128), platform).rows} != {"aiter"}


def test_rounding_rows_alone_changes_products_by_the_share_that_who_serves_is_told():
    problem = linear_problem(FP4, 512, 200)
    with amd_machine("gfx950"), torch.inference_mode():
        weight, x = torch.randn(200, 512), torch.randn(64, 512).to(BF16)
        made = {**FP4.quantize(weight), "bias": None}
        exact = x.float() @ FP4.dequantize(made, 512).t()
        error = (select(LINEAR, problem).prepare(made)(x).float() - exact).pow(2).mean().sqrt()
    assert "about 12 %" in ROWS_NOTE
    assert error / exact.pow(2).mean().sqrt() == pytest.approx(0.12, abs=0.01)


@pytest.mark.parametrize(
    ("arch", "asked", "changes", "rounded"),
    [
        ("gfx950", "1", {}, FP4),
        ("gfx950", "1", {"in_features": 512, "out_features": 40}, FP4),
        ("gfx950", "1", {"out_features": 64, "gated": True}, FP4),
        ("gfx950", "1", {"out_features": 64}, None),
        ("gfx950", "1", {"weight_format": Nvfp4()}, None),
        ("gfx950", "1", {"weight_format": ROWS, "input_format": ROWS}, ROWS),
        ("gfx950", "0", {}, None),
        ("gfx942", "1", {}, None),
    ],
)
def test_rows_are_rounded_where_the_environment_asks_and_a_product_takes_them(
    arch, asked, changes, rounded, monkeypatch
):
    monkeypatch.setenv("ATOM_AITER_MXFP4_ROWS", asked)
    problem = replace(LinearProblem(256, 128, BF16, weight_format=FP4, neighbors=True), **changes)
    assert with_rows_asked_for(problem, Platform.rocm(arch)) == replace(problem, input_format=rounded)
    without = replace(Platform.rocm(arch), unavailable=(("aiter", "is not there"),))
    assert with_rows_asked_for(problem, without) == problem


def test_a_function_that_is_not_there_is_never_bound():
    with amd_machine("gfx950") as platform, torch.inference_mode(), bound_functions() as used:
        for backend in LINEAR.backends:
            problems = [one for one in LINEAR.parity_problems() if one.input_format is not None]
            served = [one for one in problems if backend.name == "aiter" and backend.supports(one, platform) is None]
            for problem in served[:1]:
                made, (x,) = LINEAR.make_inputs(problem, 3, torch.Generator().manual_seed(0))
                used.clear()
                plan_with(LINEAR, problem, backend).prepare(made)(x)
                assert used
                for missing in used:
                    kept = tuple(one for one in platform.aiter.functions if one[0] != missing)
                    lacking = replace(platform, aiter=replace(platform.aiter, functions=kept))
                    assert f"has no {missing}" in (backend.supports(problem, lacking) or "")


@contextlib.contextmanager
def bound_functions():
    """The names of functions that are bound inside."""
    original, names = Library.bind, []

    def bind(library, name, *varying, **fixed):
        names.append(name)
        return original(library, name, *varying, **fixed)

    Library.bind = bind
    try:
        yield names
    finally:
        Library.bind = original
