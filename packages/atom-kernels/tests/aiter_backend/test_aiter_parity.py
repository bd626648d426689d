"""Adapters of norms, activations, linears and rotation against the references, on the emulator."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from amd_machine import amd_machine
from atom_kernels.activation import Activation, GatedActivationProblem
from atom_kernels.activation.ops import GATED_ACTIVATION
from atom_kernels.aiter.tables import cos_sin_tables
from atom_kernels.cases import mismatch, parity_cases
from atom_kernels.cli import check
from atom_kernels.cli.main import main
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.norm import ADD_RMS_NORM, LAYER_NORM, RMS_NORM, LayerNormProblem, RMSNormProblem, layer_norm
from atom_kernels.operator import Backend
from atom_kernels.platform import Platform
from atom_kernels.registry import all_ops
from atom_kernels.rotary import RotaryProblem
from atom_kernels.rotary.ops import OP as ROTARY
from atom_kernels.select import select

MACHINES = [("gfx942", "git"), ("gfx950", "git"), ("gfx942", "pypi"), ("gfx950", "pypi")]
OPERATORS = {
    "rms_norm", "add_rms_norm", "layer_norm", "gated_activation", "linear", "apply_rotary",
    "head_product",
}  # fmt: skip
HALF, FLOAT = torch.bfloat16, torch.float32


@pytest.mark.parametrize(("arch", "release"), MACHINES)
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_parity_of_an_adapter_with_its_reference(name, arch, release):
    with amd_machine(arch, release) as platform, torch.inference_mode():
        cases = [case for case in parity_cases(all_ops()[name], platform) if case.backend.startswith("aiter")]
        assert cases
        for case in cases:
            problem = mismatch(case.run(), case.expected(), case.tolerance)
            assert problem is None, f"{case.backend} on {case.label}: {problem}"


@pytest.mark.parametrize("release", ["git", "pypi"])
def test_the_check_of_aiter_is_a_table_that_names_the_machine_and_what_was_not_checked(release, capsys):
    with amd_machine("gfx950", release):
        assert main(["check", "--backend", "aiter", "layer_norm", "embedding"]) == 0
    out = capsys.readouterr().out
    assert "AMD Instinct MI355X (amd, gfx950)" in out
    assert re.search(r"layer_norm +aiter \(AITER layernorm2d_fwd\) +60 passed, worst \d+% of allowed", out)
    assert "embedding            aiter runs none of its cases: it has no implementation" in out


def test_an_operator_of_which_aiter_takes_no_case_is_told_with_the_reason(capsys):
    refusing = Backend.of("aiter", "AITER layer norm", layer_norm, supports=lambda problem, platform: "takes none")
    with amd_machine() as platform:
        assert check.run([replace(LAYER_NORM, backends=(refusing,))], platform, only_backend="aiter") == 1
    assert "layer_norm           aiter runs none of its cases: takes none" in capsys.readouterr().out


def test_the_check_of_aiter_fails_where_its_results_are_wrong(monkeypatch, capsys):
    with amd_machine():
        import aiter.ops.norm

        right = aiter.ops.norm.layernorm2d_fwd
        monkeypatch.setattr(aiter.ops.norm, "layernorm2d_fwd", lambda *arguments: right(*arguments) * 1.1)
        assert main(["check", "--backend", "aiter", "layer_norm"]) == 1
    out = capsys.readouterr().out
    assert "FAIL layer_norm aiter (AITER layernorm2d_fwd): hidden_size=64" in out
    assert "off by up to" in out


@pytest.mark.slow
def test_aiter_can_be_measured(capsys):
    with amd_machine():
        assert main(["bench", "--backend", "aiter", "layer_norm", "--rows", "1", "--seconds", "0.001"]) == 0
    out = capsys.readouterr().out
    assert "AITER layernorm2d_fwd" in out
    assert "torch layer_norm" not in out


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_parity_of_linears_with_shuffled_weights(arch, monkeypatch):
    monkeypatch.setenv("ATOM_AITER_SHUFFLE_LINEAR", "1")
    problems = (LinearProblem(64, 128, HALF), LinearProblem(192, 64, HALF, True), LinearProblem(32, 48, HALF))
    with amd_machine(arch, "git") as platform:
        cases = list(parity_cases(replace(LINEAR, parity_problems=lambda: problems), platform))
        shuffled = [case for case in cases if "shuffled" in case.backend]
        assert {case.label.split(" dtype")[0] for case in shuffled} == {
            "in_features=64 out_features=128",
            "in_features=192 out_features=64",
            *(["in_features=32 out_features=48"] if arch == "gfx942" else []),
        }
        for case in shuffled:
            assert mismatch(case.run(), case.expected(), case.tolerance) is None


def test_a_shuffled_weight_is_the_only_copy_and_one_that_aiter_recognizes(monkeypatch):
    monkeypatch.setenv("ATOM_AITER_SHUFFLE_LINEAR", "1")
    with amd_machine() as platform:
        plan = select(LINEAR, LinearProblem(64, 32, HALF), platform)
        bound = plan.prepare({"weight": torch.randn(32, 64).to(HALF)})
        assert [name for name, _ in plan.layouts] == ["aiter_shuffled_16x16"]
        assert bound.packed["aiter_shuffled_16x16"]["weight"].is_shuffled


@pytest.mark.parametrize(
    ("op", "problem", "words"),
    [
        (RMS_NORM, RMSNormProblem(64, HALF, weight_offset=1.0), r"not with weight \+ 1"),
        (ADD_RMS_NORM, RMSNormProblem(64, HALF, weight_offset=0.5), "adds 1 to the weight or nothing"),
        (RMS_NORM, RMSNormProblem(64, torch.float64), "not torch.float64"),
        (LAYER_NORM, LayerNormProblem(64, FLOAT), "bfloat16 and float16, not torch.float32"),
        (GATED_ACTIVATION, GatedActivationProblem(1001, HALF, Activation.SILU), "past the end of a row of 1001"),
        (GATED_ACTIVATION, GatedActivationProblem(7, HALF, Activation.SILU), "past the end of a row of 7"),
        (
            GATED_ACTIVATION,
            GatedActivationProblem(64, HALF, Activation.SWIGLU_OAI, limit=10.0),
            "limit 7 are built in, not 1.702 and 10",
        ),
        (LINEAR, LinearProblem(64, 64, FLOAT), "bfloat16 and float16, not torch.float32"),
        (LINEAR, LinearProblem(64, 64, HALF), "ATOM_AITER_SHUFFLE_LINEAR=1 asks for it"),
        (LINEAR, LinearProblem(64, 64, FLOAT, neighbors=True), "bfloat16 and float16"),
        (ROTARY, RotaryProblem(2, 1, 24, 16, HALF, mrope_section=(3, 3, 2)), "one position a token"),
    ],
)
def test_what_a_kernel_cannot_do_goes_to_the_next_backend_with_a_reason(op, problem, words):
    backends = [backend for backend in op.backends if backend.name == "aiter"]
    reasons = [reason for backend in backends if (reason := backend.supports(problem, Platform.rocm("gfx942")))]

    assert any(re.search(words, reason) for reason in reasons), reasons


@pytest.mark.parametrize(
    ("op", "problem", "words"),
    [
        (RMS_NORM, RMSNormProblem(64, FLOAT), "the release on PyPI"),
        (ADD_RMS_NORM, RMSNormProblem(64, HALF, weight_offset=1.0), "takes no gemma_norm"),
        (GATED_ACTIVATION, GatedActivationProblem(64, FLOAT, Activation.SILU), "takes bfloat16, float16, not"),
        (GATED_ACTIVATION, GatedActivationProblem(150, HALF, Activation.SILU), None),
        (GATED_ACTIVATION, GatedActivationProblem(1000, HALF, Activation.SILU), None),
        (GATED_ACTIVATION, GatedActivationProblem(7, HALF, Activation.SILU), None),
        (GATED_ACTIVATION, GatedActivationProblem(151, HALF, Activation.SILU), "writes 2 elements at once"),
        (GATED_ACTIVATION, GatedActivationProblem(64, HALF, Activation.SWIGLU_OAI), "has no swiglu_and_mul"),
    ],
)
def test_what_the_release_on_pypi_lacks_is_a_reason(op, problem, words):
    backend = next(backend for backend in op.backends if backend.name == "aiter")
    reason = backend.supports(problem, Platform.rocm("gfx942", release="pypi"))
    assert reason is None if words is None else words in (reason or "")


@pytest.mark.parametrize("size", [2, 64, 150, 1000])
def test_rows_that_end_with_a_vector_are_taken(size):
    problem = GatedActivationProblem(size, HALF, Activation.SILU)
    assert select(GATED_ACTIVATION, problem, Platform.rocm("gfx942")).rows[0].backend == "aiter"


def test_nothing_that_depends_on_the_number_of_rows_serves_batch_invariance():
    platform = replace(Platform.rocm("gfx942"), batch_invariant=True)
    plan = select(LINEAR, LinearProblem(64, 64, HALF), platform)
    assert {row.backend for row in plan.rows} == {"triton"}
    assert not plan.takes_neighbors


def test_the_swiglu_of_gpt_oss_is_left_to_triton_where_there_is_one():
    problem = GatedActivationProblem(64, HALF, Activation.SWIGLU_OAI)
    assert select(GATED_ACTIVATION, problem, Platform.rocm("gfx942")).rows[0].backend == "triton"
    assert select(GATED_ACTIVATION, problem, Platform.rocm("gfx942", device="cpu")).rows[0].backend == "aiter"


@pytest.mark.parametrize("release", ["git", "pypi"])
@pytest.mark.parametrize(
    ("op", "problem", "shapes"),
    [
        (RMS_NORM, RMSNormProblem(64, HALF), [(2, 3, 64)]),
        (ADD_RMS_NORM, RMSNormProblem(64, HALF), [(2, 3, 64), (2, 3, 64)]),
        (LAYER_NORM, LayerNormProblem(64, HALF), [(2, 3, 64)]),
        (GATED_ACTIVATION, GatedActivationProblem(64, HALF, Activation.SILU), [(2, 3, 128)]),
        (LINEAR, LinearProblem(64, 48, HALF, True), [(2, 3, 64)]),
        (LINEAR, LinearProblem(64, 48, HALF, out_dtype=FLOAT), [(2, 3, 64)]),
    ],
)
def test_inputs_may_have_more_dimensions_be_slices_or_have_no_rows(op, problem, shapes, release):
    with amd_machine("gfx942", release) as platform, torch.inference_mode():
        weights, _ = op.make_inputs(problem, 1, torch.Generator().manual_seed(0))
        plan = select(op, problem, platform)
        assert plan.rows[0].backend == "aiter"
        run = plan.prepare(weights)
        for cut in (slice(None), slice(0, 0)):
            inputs = [torch.randn(*shape[:-1], shape[-1] + 24).to(HALF)[cut, ..., 5:-19] for shape in shapes]
            expected = op.reference(problem, weights, *inputs)
            assert mismatch(run(*inputs), expected, plan.op.tolerance(problem)) is None


@pytest.mark.parametrize(
    ("op", "problem", "width"),
    [
        (RMS_NORM, RMSNormProblem(64, HALF), 32),
        (GATED_ACTIVATION, GatedActivationProblem(64, HALF, Activation.SILU), 64),
        (LINEAR, LinearProblem(64, 48, HALF), 32),
    ],
)
def test_what_was_not_planned_is_refused_and_not_computed(op, problem, width):
    with amd_machine() as platform:
        weights, (x, *_) = op.make_inputs(problem, 2, torch.Generator().manual_seed(0))
        run = select(op, problem, platform).prepare(weights)
        with pytest.raises(TypeError, match="was planned for"):
            run(x[..., :width])
        with pytest.raises(TypeError, match="was planned for"):
            run(x.float())


@pytest.mark.parametrize(
    ("op", "problem"),
    [
        (RMS_NORM, RMSNormProblem(64, HALF)),
        (ADD_RMS_NORM, RMSNormProblem(64, HALF)),
        (LAYER_NORM, LayerNormProblem(64, HALF)),
        (LINEAR, LinearProblem(64, 48, HALF, True)),
    ],
)
def test_weights_may_be_slices(op, problem):
    with amd_machine() as platform, torch.inference_mode():
        weights, inputs = op.make_inputs(problem, 3, torch.Generator().manual_seed(0))
        slices = {name: torch.stack((tensor, tensor), dim=-1)[..., 1] for name, tensor in weights.items()}
        assert not any(tensor.is_contiguous() for tensor in slices.values())
        got = select(op, problem, platform).prepare(slices)(*inputs)
        assert mismatch(got, op.reference(problem, weights, *inputs), op.tolerance(problem)) is None


@pytest.mark.parametrize(
    ("op", "problem"),
    [
        (RMS_NORM, RMSNormProblem(64, HALF, 1e-4)),
        (ADD_RMS_NORM, RMSNormProblem(64, HALF, 1e-4)),
        (LAYER_NORM, LayerNormProblem(64, HALF, 1e-4)),
    ],
)
def test_what_is_added_to_the_variance_counts_for_small_rows(op, problem):
    with amd_machine() as platform, torch.inference_mode():
        weights, inputs = op.make_inputs(problem, 3, torch.Generator().manual_seed(0))
        small = [x * 1e-3 for x in inputs]
        got = select(op, problem, platform).prepare(weights)(*small)
        assert mismatch(got, op.reference(problem, weights, *small), op.tolerance(problem)) is None


def test_inputs_stay_as_they_are():
    with amd_machine() as platform, torch.inference_mode():
        for op, problem in ((ADD_RMS_NORM, RMSNormProblem(64, HALF)), (ROTARY, RotaryProblem(3, 1, 64, 64, HALF))):
            weights, inputs = op.make_inputs(problem, 5, torch.Generator().manual_seed(0))
            before = [x.clone() for x in inputs]
            select(op, problem, platform).prepare(weights)(*inputs)
            assert all(torch.equal(old, new) for old, new in zip(before, inputs, strict=True))


def test_positions_and_heads_may_be_slices():
    problem = RotaryProblem(3, 1, 20, 12, HALF)
    with amd_machine() as platform, torch.inference_mode():
        _, (q, k, positions, table) = ROTARY.make_inputs(problem, 10, torch.Generator().manual_seed(0))
        inputs = (q[::2], k[::2], positions[::2], table)
        got = select(ROTARY, problem, platform).prepare()(*inputs)
        tolerance = next(backend.tolerance for backend in ROTARY.backends if backend.tolerance)
        assert mismatch(got, ROTARY.reference(problem, {}, *inputs), tolerance(problem)) is None


def test_a_table_of_angles_is_turned_into_aiters_form_once_for_each_dtype():
    table = torch.randn(10, 8)
    cos, sin = cos_sin_tables(table, HALF)
    assert cos.shape == sin.shape == (10, 1, 1, 4)
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    assert torch.equal(cos.flatten(1), table[:, :4].to(HALF))
    assert torch.equal(sin.flatten(1), table[:, 4:].to(HALF))
    assert cos_sin_tables(table, HALF)[0] is cos
    assert cos_sin_tables(table, FLOAT)[0].dtype is FLOAT
