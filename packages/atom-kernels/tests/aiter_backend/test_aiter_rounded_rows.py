"""Norms and activations on AITER's emulator that give rows in float8, and the products that take them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from amd_machine import amd_machine
from atom_kernels.activation import Activation, GatedActivationProblem
from atom_kernels.activation.rounded import ROUNDED_GATED_ACTIVATION, RoundedActivationProblem
from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.formats import Float8, RowRounding
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.norm import ROUNDED_ADD_RMS_NORM, ROUNDED_RMS_NORM, RMSNormProblem, RoundedNormProblem, rms_norm
from atom_kernels.operator import Tolerance
from atom_kernels.platform import Platform
from atom_kernels.select import select

BF16 = torch.bfloat16
MACHINES = [("gfx942", "git"), ("gfx950", "git"), ("gfx942", "pypi"), ("gfx950", "pypi")]
ROWS, GROUPS = RowRounding(), RowRounding(128)
OPS = [ROUNDED_RMS_NORM, ROUNDED_ADD_RMS_NORM, ROUNDED_GATED_ACTIVATION]
# How a product's rows are rounded, with the weight's format, outputs that it takes, and the release that rounds so.
PRODUCTS = {
    "rows": (RowRounding(), Float8(), 48),
    "plain rows": (RowRounding(), Float8(), 24),
    "groups by column": (RowRounding(128, by_column=True), Float8(128, 128), 144),
    "groups": (RowRounding(128), Float8(128, 128), 136),
}


def norm_problem(size=256, rounding=ROWS, dtype=BF16, offset=0.0):
    return RoundedNormProblem(RMSNormProblem(size, dtype, 1e-5, offset), rounding)


def gated_problem(size=256, rounding=GROUPS, dtype=BF16, name=Activation.SILU):
    return RoundedActivationProblem(GatedActivationProblem(size, dtype, name), rounding)


@pytest.mark.parametrize(("arch", "release"), MACHINES)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_rounding_kernel_passes_the_check_of_the_command(op, arch, release):
    with amd_machine(arch, release) as platform, torch.inference_mode():
        cases = list(parity_cases(replace(op, parity_rows=(1, 5)), platform, "aiter"))
        assert bool(cases) == (release == "git" or op is not ROUNDED_GATED_ACTIVATION)
        for case in cases:
            assert mismatch(case.run(), case.expected(), case.tolerance) is None, case.label


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_rows_that_a_norm_has_rounded_is_that_of_rows_that_it_rounds(name, arch):
    rounding, form, outputs = PRODUCTS[name]
    problem = LinearProblem(
        256, outputs, BF16, True, weight_format=form, input_format=Float8(1, rounding.group), neighbors=True
    )
    with amd_machine(arch), torch.inference_mode():
        plan = select(LINEAR, problem)
        assert plan.row_rounding == rounding
        weights, _ = LINEAR.make_inputs(problem, 1, torch.Generator().manual_seed(0))
        linear = plan.prepare(weights)
        x = torch.randn(5, 256, generator=torch.Generator().manual_seed(1)).mul(torch.arange(1, 6)[:, None]).to(BF16)
        residual, weight = torch.randn(5, 256).to(BF16), torch.randn(256).mul(0.1).add(1).to(BF16)
        problems = norm_problem(rounding=rounding)
        codes, scale = select(ROUNDED_RMS_NORM, problems).prepare({"weight": weight})(x)
        got = linear(codes, None, 0.0, 0.0, None, scale)
        expected = linear(rms_norm(x, weight, 1e-5), None, 0.0, 0.0, None)
        assert mismatch(got, expected, Tolerance(0.02 * expected.abs().max().item(), 0.02)) is None
        codes, scale, total = select(ROUNDED_ADD_RMS_NORM, problems).prepare({"weight": weight})(x, residual)
        assert torch.equal(total, x + residual)
        got = linear(codes, None, 0.0, 0.0, x[:, :outputs], scale)
        expected = linear(rms_norm(total, weight, 1e-5), None, 0.0, 0.0, x[:, :outputs])
        assert mismatch(got, expected, Tolerance(0.02 * expected.abs().max().item(), 0.02)) is None
        assert linear(codes[:0], None, 0.0, 0.0, None, scale[:0]).shape == (0, outputs)
        with pytest.raises(TypeError, match="was planned for"):
            linear(codes[:, :128], None, 0.0, 0.0, None, scale)


@pytest.mark.parametrize("rounding", [RowRounding(128), RowRounding(128, by_column=True)])
def test_a_rounded_activation_has_its_scales_where_the_product_reads_them(rounding):
    problem = gated_problem(rounding=rounding)
    with amd_machine("gfx942"), torch.inference_mode():
        x = (
            torch.randn(3, 512, generator=torch.Generator().manual_seed(0))
            .mul(torch.tensor([[1], [20], [300]]))
            .to(BF16)
        )
        codes, scale = select(ROUNDED_GATED_ACTIVATION, problem).prepare()(x)
        wanted = ROUNDED_GATED_ACTIVATION.reference(problem, {}, x)
        assert torch.equal(scale.flatten().argsort(), wanted[1].flatten().argsort())
        assert mismatch(scale, wanted[1], Tolerance(0.0, 1e-3)) is None
        assert codes.dtype is torch.float8_e4m3fnuz


def test_rows_may_be_slices_lie_anywhere_or_be_none_and_stay_as_they_are():
    with amd_machine("gfx950"), torch.inference_mode():
        norm = select(ROUNDED_RMS_NORM, norm_problem()).prepare({"weight": torch.ones(512, dtype=BF16)[::2]})
        add_norm = select(ROUNDED_ADD_RMS_NORM, norm_problem()).prepare({"weight": torch.ones(256, dtype=BF16)})
        activate = select(ROUNDED_GATED_ACTIVATION, gated_problem(128)).prepare()
        wide = torch.randn(4, 300, generator=torch.Generator().manual_seed(0)).to(BF16)
        before, inside = wide.clone(), wide[:, 3:259]
        for kernel, inputs in ((norm, (inside,)), (add_norm, (inside, inside)), (activate, (inside,))):
            for got, wanted in zip(kernel(*inputs), kernel(*(one.clone() for one in inputs)), strict=True):
                assert torch.equal(got.float(), wanted.float())
            one = wide.view(-1)[3:259].view(1, 256)
            assert torch.equal(kernel(*[one] * len(inputs))[0].float(), kernel(*[one.clone()] * len(inputs))[0].float())
            assert kernel(*(x[:0] for x in inputs))[0].shape[0] == 0
            with pytest.raises(TypeError, match="was planned for"):
                kernel(*(x.float() for x in inputs))
            with pytest.raises(TypeError, match="was planned for"):
                kernel(*[wide] * len(inputs))
        assert torch.equal(wide, before)
        with pytest.raises(TypeError, match=r"given \[4, 256\] and a residual \[3, 256\]"):
            add_norm(inside, inside[:3])


def test_rows_apart_at_whole_addresses_are_read_as_they_are():
    with amd_machine("gfx950"), torch.inference_mode():
        activate = select(ROUNDED_GATED_ACTIVATION, gated_problem(128)).prepare()
        apart = torch.randn(4, 304, generator=torch.Generator().manual_seed(0)).to(BF16)[:, 8:264]
        for got, wanted in zip(activate(apart), activate(apart.clone()), strict=True):
            assert torch.equal(got.float(), wanted.float())


@pytest.mark.parametrize("op", [ROUNDED_RMS_NORM, ROUNDED_ADD_RMS_NORM], ids=lambda op: op.name)
def test_small_rows_are_held_down_by_epsilon(op):
    problem = norm_problem()
    with amd_machine("gfx950"), torch.inference_mode():
        weights, inputs = op.make_inputs(problem, 3, torch.Generator().manual_seed(0))
        small = tuple(x * 1e-3 for x in inputs)
        _, scale, *_ = select(op, problem).prepare(weights)(*small)
        _, wanted, *_ = op.reference(problem, weights, *small)
        assert mismatch(scale, wanted, Tolerance(0.0, 1e-2)) is None


@pytest.mark.parametrize(
    ("op", "problem", "release", "words"),
    [
        (ROUNDED_RMS_NORM, norm_problem(offset=1.0), "git", "not with weight + 1"),
        (ROUNDED_RMS_NORM, norm_problem(dtype=torch.float32), "git", "bfloat16 and float16, not torch.float32"),
        (ROUNDED_RMS_NORM, norm_problem(rounding=RowRounding(64)), "git", "groups of 128, not of 64"),
        (ROUNDED_RMS_NORM, norm_problem(260), "git", "whole 8 elements, not 260"),
        (ROUNDED_RMS_NORM, norm_problem(192, RowRounding(128)), "git", "whole 128 elements, not 192"),
        (ROUNDED_RMS_NORM, norm_problem(8200), "pypi", "8192 elements at most, not 8200"),
        (ROUNDED_RMS_NORM, norm_problem(8320, RowRounding(128)), "git", "8192 elements at most, not 8320"),
        (ROUNDED_RMS_NORM, norm_problem(rounding=RowRounding(128)), "pypi", "takes no group_size, shuffle_scale"),
        (ROUNDED_ADD_RMS_NORM, norm_problem(offset=1.0), "git", "rmsnorm2d_fwd_with_add_dynamicquant multiplies"),
        (ROUNDED_GATED_ACTIVATION, gated_problem(name=Activation.GELU), "git", "computes silu, not gelu"),
        (ROUNDED_GATED_ACTIVATION, gated_problem(dtype=torch.float32), "git", "not torch.float32"),
        (ROUNDED_GATED_ACTIVATION, gated_problem(rounding=RowRounding()), "git", "groups of 128, not whole rows"),
        (ROUNDED_GATED_ACTIVATION, gated_problem(rounding=RowRounding(64)), "git", "groups of 128, not of 64"),
        (ROUNDED_GATED_ACTIVATION, gated_problem(192), "git", "whole groups of 128"),
        (ROUNDED_GATED_ACTIVATION, gated_problem(8320), "git", "8192 elements at most, not 8320"),
        (ROUNDED_GATED_ACTIVATION, gated_problem(4224), "git", "misses parts of its groups"),
        (ROUNDED_GATED_ACTIVATION, gated_problem(6144), "git", "misses parts of its groups"),
        (ROUNDED_GATED_ACTIVATION, gated_problem(), "pypi", "has no silu_and_mul_quant"),
    ],
)
def test_what_a_rounding_kernel_cannot_do_is_a_reason(op, problem, release, words):
    plan = select(op, problem, Platform.rocm("gfx942", release=release))
    assert plan.rows[0].is_fallback
    reasons = [reason for backend, reason in plan.passed_over if backend.startswith("aiter")]
    assert any(words in reason for reason in reasons), reasons


@pytest.mark.parametrize(
    ("op", "problem"),
    [
        (ROUNDED_RMS_NORM, norm_problem(8192, RowRounding(128))),
        (ROUNDED_RMS_NORM, norm_problem(8200)),
        (ROUNDED_ADD_RMS_NORM, norm_problem(8192)),
        (ROUNDED_GATED_ACTIVATION, gated_problem(4096)),
        (ROUNDED_GATED_ACTIVATION, gated_problem(6272)),
        (ROUNDED_GATED_ACTIVATION, gated_problem(8192)),
    ],
)
def test_the_longest_rows_are_taken_and_right(op, problem):
    with amd_machine("gfx950"), torch.inference_mode():
        plan = select(op, problem)
        assert not plan.rows[0].is_fallback
        weights, inputs = op.make_inputs(problem, 2, torch.Generator().manual_seed(0))
        got, expected = plan.prepare(weights)(*inputs), op.reference(problem, weights, *inputs)
        assert mismatch(op.comparable(got), op.comparable(expected), op.tolerance(problem)) is None


def test_rows_that_are_rounded_are_refused_by_a_linear_that_rounds_its_own():
    problem = LinearProblem(64, 32, BF16, neighbors=True)
    with amd_machine("gfx950"), torch.inference_mode():
        kernel = select(LINEAR, problem).prepare({"weight": torch.ones(32, 64, dtype=BF16)})
        with pytest.raises(TypeError, match="rounds its rows by itself"):
            kernel(torch.ones(2, 64, dtype=BF16), None, 0.0, 0.0, None, torch.ones(2, 1))
