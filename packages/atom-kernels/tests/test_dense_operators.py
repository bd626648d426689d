"""Facts of norms, activations, linears and the embedding that parity over random inputs would not show."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.activation import Activation, GatedActivationProblem, gated_activation
from atom_kernels.activation.ops import GATED_ACTIVATION
from atom_kernels.cases import mismatch
from atom_kernels.embedding import embedding
from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.quantized import DEQUANTIZE_BACKEND
from atom_kernels.norm import (
    ADD_RMS_NORM,
    LAYER_NORM,
    RMS_NORM,
    LayerNormProblem,
    RMSNormProblem,
    add_rms_norm,
    layer_norm,
    rms_norm,
)
from atom_kernels.platform import Facts, Platform, detect_platform, platform_from_facts
from atom_kernels.select import plan_with, select


def usable(op, problem):
    platform = detect_platform()
    return [
        backend
        for backend in op.ordered_backends()
        if not platform.why_not(backend.name) and not backend.supports(problem, platform)
    ]


def each_backend(op, problem, weights):
    return [plan_with(op, problem, backend).prepare(weights) for backend in usable(op, problem)]


NORM = RMSNormProblem(32, torch.bfloat16)


def bind_norms(op=RMS_NORM):
    return each_backend(op, NORM, {"weight": torch.ones(32, dtype=torch.bfloat16)})


def bind_norms_of_one_input():
    """Every implementation of the RMS norm and of the layer norm, for rows of 32 in bfloat16."""
    weight, bias = torch.linspace(0.5, 1.5, 32).bfloat16(), torch.linspace(-1, 1, 32).bfloat16()
    with_bias, without = (LayerNormProblem(32, torch.bfloat16, 1e-5, has_bias, 1.0) for has_bias in (True, False))
    layer_norms = each_backend(LAYER_NORM, with_bias, {"weight": weight, "bias": bias})
    layer_norms += each_backend(LAYER_NORM, without, {"weight": weight})
    return bind_norms() + layer_norms


def test_a_row_of_ones_has_rms_one():
    assert torch.allclose(rms_norm(torch.ones(1, 8), torch.full((8,), 2.0), 0.0), torch.full((1, 8), 2.0))


def test_the_weight_offset_is_added_to_the_weight():
    x, weight = torch.randn(3, 8), torch.randn(8)
    assert torch.allclose(rms_norm(x, weight, 1e-6, weight_offset=1.0), rms_norm(x, weight + 1, 1e-6))


def test_rms_norm_agrees_with_torch():
    x, weight = torch.randn(3, 8), torch.randn(8)
    assert torch.allclose(rms_norm(x, weight, 1e-6), torch.nn.functional.rms_norm(x, (8,), weight, 1e-6), atol=1e-6)


def test_layer_norm_agrees_with_torch():
    x, weight, bias = torch.randn(3, 8), torch.randn(8), torch.randn(8)
    expected = torch.nn.functional.layer_norm(x, (8,), weight, bias, 1e-5)
    assert torch.allclose(layer_norm(x, weight, bias, 1e-5), expected, atol=1e-6)


@pytest.mark.parametrize("mean", [0.0, 1000.0, -3e4])
def test_rows_far_from_zero_keep_their_deviations_in_a_layer_norm(mean):
    x = mean + torch.arange(48.0).repeat(3, 1)
    expected = layer_norm(x.double() - mean, torch.ones(48), None, 1e-5)
    for kernel in each_backend(LAYER_NORM, LayerNormProblem(48, torch.float32, bias=False), {"weight": torch.ones(48)}):
        assert torch.allclose(kernel(x).double(), expected.double(), atol=2e-3)


def test_the_residual_carried_on_is_what_was_normed():
    x, residual, weight = (torch.randn(3, 8).bfloat16(), torch.randn(3, 8).bfloat16(), torch.ones(8).bfloat16())
    normed, new_residual = add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(new_residual, x + residual)
    assert torch.equal(normed, rms_norm(new_residual, weight, 1e-6))


def test_norms_leave_their_inputs_as_they_are():
    x, residual = torch.randn(3, 32).bfloat16(), torch.randn(3, 32).bfloat16()
    before = x.clone(), residual.clone()
    for norm in bind_norms(ADD_RMS_NORM):
        norm(x, residual)
        assert torch.equal(x, before[0])
        assert torch.equal(residual, before[1])


def test_norms_take_rows_that_are_not_adjacent():
    wide = torch.randn(5, 48).bfloat16()
    for norm in bind_norms_of_one_input():
        assert torch.equal(norm(wide[:, :32]), norm(wide[:, :32].contiguous()))


def test_norms_take_heads_as_further_rows():
    x = torch.randn(5, 3, 32).bfloat16()
    for norm in bind_norms_of_one_input():
        assert torch.equal(norm(x).view(15, 32), norm(x.view(15, 32)))


@pytest.mark.parametrize("num_rows", [0, 1])
def test_norms_take_no_rows_at_all(num_rows):
    for norm in bind_norms_of_one_input():
        assert norm(torch.ones(num_rows, 32).bfloat16()).shape == (num_rows, 32)


def native_kernels():
    """(bound plan, rows that are right for it) of each C kernel."""
    norm = RMSNormProblem(32, torch.bfloat16)
    weight = torch.ones(32, dtype=torch.bfloat16)
    linear = LinearProblem(64, 32, torch.bfloat16)
    candidates = [
        (RMS_NORM, norm, {"weight": weight}, 32),
        (LAYER_NORM, LayerNormProblem(32, torch.bfloat16, bias=False, weight_offset=1.0), {"weight": weight}, 32),
        (GATED_ACTIVATION, GatedActivationProblem(32, torch.bfloat16, Activation.SILU), {}, 64),
        (LINEAR, linear, {"weight": torch.ones(32, 64, dtype=torch.bfloat16)}, 64),
    ]
    return [
        (plan_with(op, problem, backend).prepare(weights), width)
        for op, problem, weights, width in candidates
        for backend in usable(op, problem)
        if backend.name == "native"
    ]


def test_c_kernels_refuse_what_they_were_not_planned_for():
    for kernel, width in native_kernels():
        kernel(torch.ones(2, width).bfloat16())
        with pytest.raises(TypeError, match="was planned for"):
            kernel(torch.ones(2, width + 1).bfloat16())
        with pytest.raises(TypeError, match="was planned for"):
            kernel(torch.ones(2, width))


def test_silu_is_right_at_the_ends_of_the_number_line():
    gates = torch.tensor([-3e38, -1000.0, -88.0, -20.0, 0.0, 20.0, 88.0, 1000.0, float("nan")])
    x = torch.cat((gates, torch.ones(9))).view(1, 18)
    expected = gated_activation(x, Activation.SILU)
    for kernel in each_backend(GATED_ACTIVATION, GatedActivationProblem(9, torch.float32, Activation.SILU), {}):
        assert torch.allclose(kernel(x), expected, rtol=1e-5, atol=1e-30, equal_nan=True)


def test_gates_come_first_in_silu_and_gelu():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    silu, gelu = torch.nn.functional.silu, torch.nn.functional.gelu
    assert torch.allclose(gated_activation(x, Activation.SILU), silu(x[:, :2]) * x[:, 2:])
    assert torch.allclose(gated_activation(x, Activation.GELU_TANH), gelu(x[:, :2], approximate="tanh") * x[:, 2:])


@pytest.mark.parametrize("name", ["relu6", "swiglu"])
def test_an_activation_that_nobody_knows_is_refused_by_name(name):
    with pytest.raises(
        ValueError, match=f"activation is '{name}'; supported: silu, gelu, gelu_tanh, quick_gelu, relu, relu2, swig"
    ):
        GatedActivationProblem(8, torch.float32, name)


@pytest.mark.parametrize("name", Activation)
def test_a_backend_computes_an_activation_or_names_it_when_it_refuses(name):
    problem = GatedActivationProblem(64, torch.bfloat16, name)
    platform = Platform.rocm("gfx942", device="cpu")
    refused = {
        backend.name: reason for backend in GATED_ACTIVATION.backends if (reason := backend.supports(problem, platform))
    }
    served = {"aiter": ("silu", "gelu", "gelu_tanh", "swiglu_oai"), "native": ("silu",)}
    for backend, names in served.items():
        assert ("not " + name in refused.get(backend, "")) == (name not in names)
    assert not {"triton", "torch"} & set(refused)


def test_gates_are_interleaved_and_clamped_in_swiglu_oai():
    x = torch.tensor([[1.0, 2.0, 100.0, -100.0]])
    sigmoid = torch.tensor([1.702, 1.702 * 7]).sigmoid().tolist()
    expected = [1.0 * sigmoid[0] * (2.0 + 1), 7.0 * sigmoid[1] * (-7.0 + 1)]
    assert gated_activation(x, Activation.SWIGLU_OAI)[0].tolist() == pytest.approx(expected)


def test_ids_outside_a_slice_of_the_vocabulary_give_zeros():
    table = torch.randn(4, 3)
    rows = embedding(torch.tensor([9, 10, 13, 14]), table, first_id=10)
    assert torch.equal(rows[[0, 3]], torch.zeros(2, 3))
    assert torch.equal(rows[[1, 2]], table[[0, 3]])


def test_slices_of_a_vocabulary_add_up_to_the_lookup():
    table, ids = torch.randn(10, 3), torch.arange(10)
    parts = embedding(ids, table[:6], first_id=0) + embedding(ids, table[6:], first_id=6)
    assert torch.equal(parts, embedding(ids, table))


def test_the_int8_plan_differs_by_rows_in_bfloat16():
    plan = select(LINEAR, LinearProblem(64, 32, torch.bfloat16, weight_format=Integers(8)), only_backend="torch")
    if plan.rows[0].max_rows is None:
        pytest.skip("this torch has no int8 product")
    assert plan.rows[-1].max_rows is None
    assert plan.layouts == (("source", 64 * 32 + 32 * 4),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("in_features", "out_features"), [(96, 48), (50, 21), (4100, 37)])
def test_a_row_of_the_c_linear_does_not_depend_on_its_batch(dtype, in_features, out_features):
    problem = LinearProblem(in_features, out_features, dtype, bias=True)
    backends = [backend for backend in usable(LINEAR, problem) if backend.name == "native"]
    if not backends:
        pytest.skip("no native linear here")
    weight, bias = torch.randn(out_features, in_features).to(dtype), torch.randn(out_features).to(dtype)
    bound = plan_with(LINEAR, problem, backends[0]).prepare({"weight": weight, "bias": bias})
    x = torch.randn(11, in_features).to(dtype)
    alone = torch.cat([bound(row.unsqueeze(0)) for row in x])
    for num_rows in (2, 3, 4, 5, 6, 7, 11):
        assert torch.equal(bound(x[:num_rows]), alone[:num_rows])


_PACKED = (
    Integers(8),
    Integers(8, 16),
    Integers(8, 32, Offset.MINIMUM),
    Integers(4, 16),
    Integers(4, 32, Offset.ZERO_POINT),
    Integers(4, 64, Offset.MINIMUM),
    Integers(4, 96, Offset.ZERO_POINT),
    Integers(8, 16),
    Mxfp4(),
    Nvfp4(),
    Float8(),
    Float8(1, 32),
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("weight_format", _PACKED, ids=lambda weight_format: weight_format.name)
@pytest.mark.parametrize(("in_features", "out_features"), [(64, 21), (2112, 37)])
def test_a_row_of_the_c_linear_over_packed_weights_does_not_depend_on_its_batch(
    weight_format, in_features, out_features, dtype
):
    problem = LinearProblem(in_features, out_features, dtype, bias=True, weight_format=weight_format)
    backends = [backend for backend in usable(LINEAR, problem) if backend.name == "native"]
    if not backends:
        pytest.skip("no native linear over packed weights here")
    bias = torch.randn(out_features).to(dtype)
    weights = weight_format.quantize(torch.randn(out_features, in_features)) | {"bias": bias}
    bound = plan_with(LINEAR, problem, backends[0]).prepare(weights)
    x = torch.randn(11, in_features).to(dtype)
    alone = torch.cat([bound(row.unsqueeze(0)) for row in x])
    for num_rows in (2, 3, 4, 5, 7, 8, 9, 11):
        assert torch.equal(bound(x[:num_rows]), alone[:num_rows])


def test_float32_linears_have_one_implementation_for_every_row_count():
    plan = select(LINEAR, LinearProblem(8192, 64, torch.float32))
    assert [row.max_rows for row in plan.rows] == [None]


@pytest.mark.parametrize("in_features", [40, 2050])
def test_a_row_of_a_float32_linear_has_the_same_bits_beside_any_number_of_others(in_features):
    problem = LinearProblem(in_features, 41, torch.float32, bias=True)
    natives = [one for one in usable(LINEAR, problem) if one.name == "native"]
    if not natives:
        pytest.skip("no native linear here")
    linear = plan_with(LINEAR, problem, natives[0]).prepare(
        {"weight": torch.randn(41, in_features), "bias": torch.randn(41)}
    )
    x = torch.randn(14, in_features)
    alone = torch.cat([linear(row) for row in x.split(1)])
    for num_rows in (2, 3, 11, 12, 13, 14):
        assert torch.equal(linear(x[:num_rows]), alone[:num_rows])


def test_a_cpu_with_amx_keeps_one_packed_copy_for_every_row_count():
    features = frozenset({"amx_bf16", "avx512_bf16"})
    amx = platform_from_facts(Facts(cpu_features=features, bf16_slowdown=0.2))
    problem = LinearProblem(64, 64, torch.bfloat16)
    layouts = ("amx_tiles", "onednn_packed")
    packed = [one for one in LINEAR.ordered_backends() if one.layout.name in layouts and not one.supports(problem, amx)]
    if not packed:
        pytest.skip("no packed linear here")
    plan = select(LINEAR, problem, amx)
    assert [(row.backend, row.max_rows) for row in plan.rows] == [(packed[0].name, None)]


def test_without_fast_bfloat16_linears_are_torchs_own():
    off = tuple((name, "off") for name in ("aiter", "triton", "native"))
    slow = replace(detect_platform(), fast_bf16=False, cpu_features=frozenset(), unavailable=off)
    plan = select(LINEAR, LinearProblem(64, 64, torch.bfloat16), slow)
    assert [row.backend for row in plan.rows] == ["torch"]


class OnGpu(torch.Tensor):
    """A tensor of the host that says it lies on a GPU."""

    is_cuda = True


def test_logits_are_rounded_where_this_torch_cannot_keep_their_sums(monkeypatch):
    def refuse(*operands, out_dtype=None):
        raise RuntimeError("gemm input type at::BFloat16 and output type float is not supported for ROCm")

    problem = LinearProblem(32, 24, torch.bfloat16, out_dtype=torch.float32)
    weights, (x,) = LINEAR.make_inputs(problem, 3, torch.Generator().manual_seed(0))
    monkeypatch.setattr(torch, "mm", refuse)
    torch_backend = next(backend for backend in LINEAR.backends if backend.implementation == "torch linear")
    out = torch_backend.bind(problem, {**weights, "weight": weights["weight"].as_subclass(OnGpu)})(x)
    assert mismatch(out, LINEAR.reference(problem, weights, x), LINEAR.tolerance(problem)) is None


def test_logits_of_int8_weights_are_sums_that_were_not_rounded_before_their_scale():
    problem = LinearProblem(64, 96, torch.bfloat16, out_dtype=torch.float32, weight_format=Integers(8))
    weights, (x,) = LINEAR.make_inputs(problem, 3, torch.Generator().manual_seed(0))
    logits = DEQUANTIZE_BACKEND.bind(problem, weights)(x)
    torch.testing.assert_close(logits, LINEAR.reference(problem, weights, x), atol=1e-5, rtol=1e-5)
