"""Products of heads through AITER's emulator, and latent attention that multiplies by them where it is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from aiter_calls import only_what_graphs_hold, recorded_calls
from amd_machine import amd_machine
from atom_kernels.aiter.latent_products import latent_products
from atom_kernels.attention.mla.cases import make_problem, make_step
from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.formats import Mxfp4
from atom_kernels.head_product import HEAD_PRODUCT, HeadProductProblem
from atom_kernels.mixers import select_mixer
from atom_kernels.operator import Tolerance
from atom_kernels.platform import Platform
from atom_kernels.select import select
from machine_rounding import rounded_heads

BF16 = torch.bfloat16
MACHINES = [("gfx942", "git"), ("gfx950", "git"), ("gfx942", "pypi"), ("gfx950", "pypi")]
# Heads, inputs, outputs: odd ones, and those of one of 8 ranks of DeepSeek-R1, Kimi-K2 and GLM-5.
SHAPES = [(3, 24, 20), (1, 130, 7), (16, 128, 512), (16, 512, 128), (8, 128, 512), (8, 192, 512), (8, 512, 256)]
FP8, FP4 = "ATOM_AITER_FP8_BMM", "ATOM_USE_TRITON_MXFP4_BMM"
FUNCTIONS = {
    FP8: "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant",
    ("git", FP4): "batched_gemm_a16wfp4",
    ("pypi", FP4): "batched_gemm_afp4wfp4_pre_quant",
}


def product(platform, shape, rounded_to, num_rows):
    """The plan, unlike rows that lie apart, and weights; a group of the first row is zeros."""
    problem = HeadProductProblem(*shape, BF16, rounded_to)
    generator = torch.Generator().manual_seed(num_rows)
    heads, size, outputs = shape
    wide = torch.randn(num_rows, heads, size + 5, generator=generator)
    wide *= torch.exp2(torch.randint(-3, 4, (num_rows, heads, 1), generator=generator).float())
    wide[0, 0, :128] = 0
    x, weight = wide[..., :size].to(BF16), (torch.randn(heads, outputs, size, generator=generator) / 8).to(BF16)
    return select(HEAD_PRODUCT, problem, platform), x, weight


def rounded_weight(weight, rounded_to):
    if rounded_to == "mxfp4":
        parts = Mxfp4().quantize(weight.flatten(0, 1))
        return Mxfp4().dequantize(parts, weight.shape[-1]).view(weight.shape)
    dtype = getattr(torch, rounded_to)
    scale = weight.float().abs().max() / torch.finfo(dtype).max
    return (weight.float() / scale).to(dtype).float() * scale


def names_of(platform):
    return [platform.float8, *(["mxfp4"] if platform.arch == "gfx950" else [])]


def takes(shape, rounded_to):
    return rounded_to != "mxfp4" or shape[1] in (128, 512)


@pytest.mark.parametrize(("arch", "release"), MACHINES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_product_of_heads_has_the_numbers_of_its_rounded_rows(arch, release, shape):
    with amd_machine(arch, release) as platform, torch.inference_mode():
        for rounded_to in filter(lambda name: takes(shape, name), names_of(platform)):
            for num_rows in (1, 3, 33):
                plan, x, weight = product(platform, shape, rounded_to, num_rows)
                assert plan.rows[0].backend == "aiter", plan.passed_over
                x = x if num_rows > 1 else x.contiguous()
                rows = rounded_heads(x, rounded_to, release)
                expected = torch.einsum("thk,hnk->thn", rows, rounded_weight(weight, rounded_to)).to(BF16)
                got = plan.prepare({"weight": weight})(x)
                assert got.is_contiguous()
                # Numbers in the middle of two codes of fp8 go either way by the last bit of a scale.
                close = Tolerance(2e-2 * expected.float().abs().max().item(), 1.6e-2)
                assert mismatch(got, expected, close) is None, (rounded_to, num_rows)


@pytest.mark.parametrize(("arch", "release"), MACHINES)
def test_every_product_of_heads_passes_the_check_of_the_command(arch, release):
    with amd_machine(arch, release) as platform, torch.inference_mode():
        passed = set()
        for case in parity_cases(replace(HEAD_PRODUCT, parity_rows=(1, 5)), platform, "aiter"):
            assert mismatch(case.run(), case.expected(), case.tolerance) is None, case.label
            passed.add(case.backend)
        assert len(passed) == (3 if arch == "gfx950" else 2)


def test_what_the_check_multiplies_is_not_changed_by_rounding_it():
    for problem in HEAD_PRODUCT.parity_problems():
        if problem.rounded_to is not None and problem.in_features % 32 == 0:
            weights, (x,) = HEAD_PRODUCT.make_inputs(problem, 9, torch.Generator().manual_seed(0))
            exact = replace(problem, rounded_to=None)
            assert torch.equal(HEAD_PRODUCT.reference(problem, weights, x), HEAD_PRODUCT.reference(exact, weights, x))


@pytest.mark.parametrize(("arch", "release"), MACHINES)
def test_weights_are_kept_in_the_bytes_that_the_plan_says_and_in_the_codes_of_the_machine(arch, release):
    with amd_machine(arch, release) as platform:
        for rounded_to in (None, *names_of(platform)):
            plan, _, weight = product(platform, (3, 128, 20), rounded_to, 1)
            turned = weight.transpose(1, 2).contiguous().transpose(1, 2)
            [packed] = plan.prepare({"weight": turned}).packed.values()
            assert all(part.is_contiguous() for part in packed.values())
            assert sum(part.nbytes for part in packed.values()) == plan.weight_bytes
            codes = {None: BF16, "mxfp4": torch.uint8}.get(rounded_to, getattr(torch, platform.float8))
            assert packed["weight"].dtype == codes


@pytest.mark.parametrize(("arch", "release"), MACHINES)
def test_a_call_without_rows_gives_none(arch, release):
    with amd_machine(arch, release) as platform:
        for rounded_to in (None, *names_of(platform)):
            plan, x, weight = product(platform, (3, 128, 20), rounded_to, 1)
            assert plan.prepare({"weight": weight})(x[:0]).shape == (0, 3, 20)


@pytest.mark.parametrize(
    ("arch", "fields", "words"),
    [
        ("gfx942", {"rounded_to": "float8_e4m3fn"}, "to float8_e4m3fnuz on gfx942, not to float8_e4m3fn"),
        ("gfx950", {"rounded_to": "float8_e4m3fnuz"}, "to float8_e4m3fn on gfx950, not to float8_e4m3fnuz"),
        ("gfx942", {"rounded_to": "mxfp4"}, "gfx942 multiplies no mxfp4"),
        (
            "gfx950",
            {"rounded_to": "mxfp4", "in_features": 192},
            "128, 256 and further powers of two of inputs, not 192",
        ),
        ("gfx950", {"rounded_to": "mxfp4", "in_features": 64}, "powers of two of inputs, not 64"),
        ("gfx950", {"rounded_to": "mxfp4", "dtype": torch.float16}, "bfloat16, not torch.float16"),
        ("gfx950", {"rounded_to": "float8_e4m3fn", "dtype": torch.float16}, "bfloat16, not torch.float16"),
        ("gfx950", {"dtype": torch.float32}, "multiplies bfloat16, not torch.float32"),
        ("gfx950", {"rounded_to": "mxfp4"}, "rounds nothing, and heads are to be rounded to mxfp4"),
        ("gfx950", {}, "rounds heads to mxfp4, not to None"),
    ],
)
def test_what_no_product_of_heads_does_is_said(arch, fields, words):
    problem = replace(HeadProductProblem(4, 128, 64, BF16), **fields)
    assert any(words in reason for _, reason in select(HEAD_PRODUCT, problem, Platform.rocm(arch)).passed_over)


def test_rows_of_any_batch_alike_are_nobodys_but_torchs():
    platform = replace(Platform.rocm("gfx950"), batch_invariant=True)
    for name in (None, "float8_e4m3fn", "mxfp4"):
        plan = select(HEAD_PRODUCT, HeadProductProblem(4, 128, 64, BF16, name), platform)
        assert plan.rows[0].backend == "torch"
        assert any("chosen by the number of rows" in reason for _, reason in plan.passed_over)


def test_heads_are_rounded_to_a_known_format_or_not_at_all():
    with pytest.raises(ValueError, match="not at all, not to 'int8'"):
        HeadProductProblem(4, 128, 64, BF16, "int8")


@pytest.mark.parametrize(("name", "share"), [("float8_e4m3fn", 0.04), ("mxfp4", 0.17)])
def test_rounding_changes_products_of_normal_numbers_by_what_the_log_says(name, share):
    x, weight = torch.randn(64, 4, 512), torch.randn(4, 128, 512)
    problem = HeadProductProblem(4, 512, 128, torch.float32)
    exact, rounded = (
        HEAD_PRODUCT.reference(replace(problem, rounded_to=one), {"weight": weight}, x) for one in (None, name)
    )
    error = (rounded - exact).norm() / exact.norm()
    assert 0.8 * share < error < share
    platform = Platform.rocm("gfx950")
    variable = FP4 if name == "mxfp4" else FP8
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(variable, "1")
        note = latent_products(make_problem(8, 512, 128, 64, 64, "bfloat16"), platform).note
    assert f"({variable})" in note
    assert f"about {share:.0%}".replace("%", " %") in note


# --- Latent attention ------------------------------------------------------------------------------------------------

STEPS = {
    "mixed": [(1, 1), (1, 16), (1, 70), (20, 20), (33, 60)],
    "decodes": [(1, 5), (1, 129), (1, 16)],
    "chunks": [(33, 70), (16, 32)],
}


def asked(monkeypatch, variable):
    for name in (FP8, FP4):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")


@pytest.mark.parametrize(("arch", "release"), MACHINES)
@pytest.mark.parametrize("requests", STEPS)
@pytest.mark.parametrize(("variable", "share"), [(FP8, 0.06), (FP4, 0.25)])
def test_latent_attention_with_rounded_heads_is_near_the_reference(
    arch, release, requests, variable, share, monkeypatch
):
    asked(monkeypatch, variable)
    with amd_machine(arch, release) as platform, recorded_calls() as calls:
        problem = make_problem(8, 512, 128, 64, 40, "bfloat16")
        step = make_step(problem, STEPS[requests], scattered=True)
        plan, reference = (select_mixer(problem, platform, only_backend=name) for name in ("aiter", "reference"))
        (got, cache), (expected, expected_cache) = step.run(plan), step.run(reference)
        names = calls.names & {*FUNCTIONS.values(), "batched_gemm_bf16_CK"}
    is_rounded = variable == FP8 or arch == "gfx950"
    assert names == {"batched_gemm_bf16_CK" if not is_rounded else FUNCTIONS.get((release, variable), FUNCTIONS[FP8])}
    error = (got.float() - expected.float()).norm() / expected.float().norm()
    assert (0.01 < error < share) if is_rounded else error < 0.01
    torch.testing.assert_close(cache.float(), expected_cache.float(), atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("variable", [FP8, FP4])
def test_a_step_with_rounded_heads_may_be_captured(variable, monkeypatch):
    asked(monkeypatch, variable)
    with amd_machine("gfx950") as platform, recorded_calls() as calls:
        problem = make_problem(8, 512, 128, 64, 40, "bfloat16")
        plan, step = select_mixer(problem, platform), make_step(problem, STEPS["decodes"])
        weights, caches = plan.prepare(step.weights), step.caches_for(plan)
        step.run_in_place(plan, caches, weights=weights)
        assert plan.capturable
        calls.clear()
        with only_what_graphs_hold():
            step.run_in_place(plan, caches, weights=weights)
        assert calls.names & set(FUNCTIONS.values())


@pytest.mark.parametrize(("arch", "release"), MACHINES)
def test_a_plan_says_what_is_kept_and_what_would_have_been_rounded(arch, release, monkeypatch):
    platform = Platform.rocm(arch, release=release)
    problem = make_problem(16, 512, 128, 64, 128, "bfloat16")
    source = problem.weights["kv_b"].num_bytes
    asked(monkeypatch, None)
    plan = select_mixer(problem, platform)
    assert (plan.holds.more_bytes, plan.holds.note) == (source, None)
    assert plan.holds.kernels == ("aiter (AITER batched_gemm_bf16_CK)",)
    assert [reason.partition(": ")[2] for _, reason in plan.reasons] == [
        f"{FP4}=1 asks for it",
        f"{FP8}=1 asks for it",
    ]
    asked(monkeypatch, FP8)
    holds = select_mixer(problem, platform).holds
    assert holds.more_bytes == source // 2 + 8
    assert holds.layouts == ("source", "fp8_by_head")
    assert "in fp8 (ATOM_AITER_FP8_BMM)" in holds.note
    monkeypatch.setenv(FP4, "1")
    plan = select_mixer(problem, platform)
    if arch == "gfx950":
        assert plan.holds.more_bytes == source // 4 + source // 64
        assert "in mxfp4 (ATOM_USE_TRITON_MXFP4_BMM)" in plan.holds.note
        assert plan.reasons[-1][1].endswith(": mxfp4 goes before it")
    else:
        assert "in fp8" in plan.holds.note
        assert plan.reasons[0][1].endswith(": gfx942 multiplies no mxfp4")


def test_heads_whose_sizes_mxfp4_does_not_take_stay_in_bfloat16_with_the_reason(monkeypatch):
    asked(monkeypatch, FP4)
    plan = select_mixer(make_problem(8, 512, 192, 64, 256, "bfloat16"), Platform.rocm("gfx950"))
    assert plan.holds.note is None
    assert plan.reasons[0][1].endswith("powers of two of inputs, not 192")
