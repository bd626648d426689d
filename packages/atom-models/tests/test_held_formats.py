"""Number formats of linears: chosen by layer name, changing neither layers nor models."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_kernels.formats import Float8, Integers, Mxfp4, Plain
from atom_kernels.linear import LinearProblem, linear
from atom_kernels.moe import ExpertsProblem
from atom_kernels.native import native_unavailable
from atom_kernels.platform import Platform, detect_platform
from atom_models import BuildContext, build_model, load_model, load_weights, open_checkpoint
from atom_models.layers import Linear, LMHead, MergedColumnParallelLinear, ReplicatedLinear, linear_weights
from atom_models.layers.linear_weights import max_fused_rows, plan_linear, prepare
from atom_models.layers.loadable import expected_weights
from atom_models.layers.norms.residual import Unnormed
from atom_models.quantization import (
    EXPERTS,
    LINEARS,
    ONLINE,
    HeldFormat,
    OneFormat,
    UnsupportedQuantizationError,
    choose_quantization,
    why_never_packed,
)
from atom_models.quantization.layouts import Float8Layout, Int8Layout, Mxfp4Layout, PlainLayout
from atom_models.quantization.packing import held_problem
from atom_models.requirements import find_accelerators
from single_layers import is_packed
from tiny_models import make_tiny_llama

INT8 = HeldFormat(Integers(8))


@pytest.mark.parametrize("missing", ["gate_up", "down"])
def test_experts_of_which_one_matrix_is_plain_are_plain(missing):
    plain = ExpertsProblem(4, 2, 64, 64, torch.bfloat16)
    formats = {"gate_up": Mxfp4(), "down": Mxfp4()} | {missing: Plain(torch.bfloat16)}
    rounded = HeldFormat(Mxfp4())
    assert held_problem(EXPERTS, plain, list(formats.values()), rounded, Platform.nvidia("sm_90")) == plain


def test_experts_are_packed_where_a_kernel_reads_both_matrices():
    plain = ExpertsProblem(4, 2, 1024, 1024, torch.bfloat16)
    formats, platform = [Float8(128, 128)] * 2, find_accelerators("MI300X")[0].platform
    packed = held_problem(EXPERTS, plain, formats, HeldFormat(inputs=Float8(1, 128)), platform)
    assert (packed.gate_up_format, packed.down_format) == (Float8(128, 128), Float8(128, 128))


def test_a_kernel_that_takes_in_the_norm_gets_it_where_activations_come_without():
    class Recorded:
        problem = LinearProblem(4, 4, torch.float32, neighbors=True)

        def prepare(self, weights):
            return lambda *given: given

    apply, x, weight = prepare(Recorded(), {}), torch.ones(1, 4), torch.ones(4)
    assert apply(x) == (x, None, 0.0, 0.0, None)
    assert apply(Unnormed(x, weight, 1e-5, 1.0), residual=x) == (x, weight, 1e-5, 1.0, x)


def rounded_linear(x, weight, bias):
    return linear(x, Integers(8).dequantize(Integers(8).quantize(weight), weight.shape[1]), bias)


def make_layer(held, dtype=torch.bfloat16, bias=True):
    context = BuildContext(dtype=dtype, quantization=OneFormat("test", held))
    layer = ReplicatedLinear(64, 96, context, prefix="a.proj", bias=bias)
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, expected in expected_weights(layer).items():
        weights[name] = torch.randn(expected.shape, generator=generator).to(expected.dtype)
        layer.load_shard(name, weights[name])
    layer.finish()
    return layer, weights["a.proj.weight"], weights["a.proj.bias"]


@pytest.mark.parametrize("num_rows", [1, 4, 5, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_weights_are_the_rounded_weights(dtype, num_rows):
    layer, weight, bias = make_layer(INT8, dtype)
    x = torch.randn(num_rows, 64).to(dtype)
    expected = rounded_linear(x, weight, bias)
    tolerance = {"atol": 0.15, "rtol": 0.02} if dtype is torch.bfloat16 else {"atol": 1e-4, "rtol": 1e-4}
    assert torch.allclose(layer(x), expected, **tolerance)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_quantized_on_loading_stays_near_the_dense_one(tiny_llama, dtype):
    quantized, dense = load_model(tiny_llama, dtype=dtype, quantization="int8"), load_model(tiny_llama)
    for tokens in ([3, 1, 4], list(range(5, 60))):
        ours, exact = quantized.logits([tokens])[0], dense.logits([tokens])[0]
        assert (ours - exact).abs().mean() < 0.1 * exact.std()


def held_by(quantization, name):
    return quantization.for_layer(name, torch.bfloat16).held


def test_rounding_is_refused_where_no_kernel_reads_the_format(tiny_llama):
    """No kernel for CPUs has packed weights beside float16: they would silently stay plain."""
    context = BuildContext(dtype=torch.float16, quantization=ONLINE["int4"])
    with pytest.raises(ValueError, match="not rounded to int4 per 32 .* here: "):
        build_model(open_checkpoint(tiny_llama), context)


@pytest.mark.parametrize(
    ("quantization", "inputs"),
    [
        (ONLINE["fp8"], Float8()),
        (ONLINE["fp8_block"], Float8(1, 128)),
        (ONLINE["int4"], None),
        (choose_quantization({"quantization_config": {"quant_method": "fp8"}}), Float8()),
    ],
)
def test_activations_may_be_rounded_beside_weights_of_eight_bit_floats(quantization, inputs):
    layer = ReplicatedLinear(64, 96, BuildContext(dtype=torch.float32, quantization=quantization), prefix="a.proj")
    assert layer._parts[0].problem.input_format == inputs


@pytest.mark.parametrize(
    ("platform", "formats", "gets"),
    [
        (Platform.nvidia("sm_90"), {}, True),
        (replace(Platform.nvidia("sm_90"), batch_invariant=True), {}, False),
        (Platform.rocm("gfx942"), {}, False),
        (Platform.rocm("gfx942"), {"weight_format": Float8(), "input_format": Float8()}, True),
        (Platform.rocm("gfx942"), {"weight_format": Integers(8), "input_format": Integers(8)}, False),
        (detect_platform(), {}, detect_platform().device == "cuda"),
    ],
)
def test_a_linear_gets_its_neighbors_where_kernels_take_them_in(platform, formats, gets):
    plan = plan_linear(LinearProblem(64, 64, torch.bfloat16, **formats), platform)
    assert plan.problem.neighbors == gets


@pytest.mark.parametrize(("neighbors", "most"), [(True, 4), (False, 0)])
def test_a_kernel_of_few_rows_adds_nothing_where_it_multiplies_alone(neighbors, most):
    problem, rows = LinearProblem(64, 64, torch.bfloat16, neighbors=neighbors), [SimpleNamespace(max_rows=4)]
    assert max_fused_rows(SimpleNamespace(problem=problem, rows=rows)) == most


def test_layers_get_the_shuffled_weights_of_aiter_that_are_asked_for(monkeypatch):
    monkeypatch.setenv("ATOM_AITER_SHUFFLE_LINEAR", "1")
    [row] = plan_linear(LinearProblem(64, 64, torch.bfloat16), Platform.rocm("gfx942")).rows
    assert row.implementation == "AITER tuned GEMM, shuffled weight"


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_what_a_checkpoint_says_of_activations_chooses_amds_kernel(arch):
    plain = LinearProblem(1024, 1024, torch.bfloat16)
    platform = Platform.rocm(arch)
    served = {}
    for layout in (Float8Layout(), Float8Layout((128, 128)), Int8Layout(rounds_inputs=True), Mxfp4Layout()):
        for held in (HeldFormat(inputs=layout.input_format), HeldFormat()):
            problem = held_problem(LINEARS, plain, [layout.weight_format], held, platform)
            assert problem.weight_format == layout.weight_format
            served[layout, held.inputs is not None] = plan_linear(problem, platform).rows[0].backend
            why = why_never_packed(LINEARS, layout.weight_format, plain.dtype, platform, input_format=held.inputs)
            assert why is None
    assert {
        rounded: {one for (_, inputs), one in served.items() if inputs is rounded} for rounded in (True, False)
    } == {
        True: {"aiter"},
        False: {"triton"},
    }


def test_a_format_that_one_kernel_reads_with_rounded_activations_alone_is_read_with_them():
    """As vLLM asks, where Triton is not there to make up for AITER."""
    platform = Platform.rocm("gfx942", device="cpu")
    assert why_never_packed(LINEARS, Float8(), torch.bfloat16, platform, input_format=Float8()) is None
    why_plain = why_never_packed(LINEARS, Float8(), torch.bfloat16, platform)
    assert "rows of this linear are not rounded" in (why_plain or "")


@pytest.mark.parametrize("kind", [LINEARS, EXPERTS], ids=lambda kind: kind.weights)
def test_why_a_format_is_never_packed_is_said_by_kernels_that_read_formats(kind):
    reasons = set(str(why_never_packed(kind, Mxfp4(), torch.float16, detect_platform())).split("; "))
    of_all = native_unavailable("probe") or "written for float32 and bfloat16, not torch.float16"
    assert of_all in reasons
    assert reasons <= {of_all, "written for bfloat16, not torch.float16"}


def test_experts_of_odd_size_stay_plain_where_the_kernel_wants_rounded_rows():
    """AITER multiplies no rows that are not rounded, which says nothing of the format."""
    plain, wanted = ExpertsProblem(4, 2, 1000, 64, torch.bfloat16), HeldFormat(Float8(), inputs=Float8())
    platform = Platform.rocm("gfx942")
    assert held_problem(EXPERTS, plain, [Float8(), Float8()], wanted, platform) == plain
    unrounded = replace(wanted, inputs=None)
    with pytest.raises(UnsupportedQuantizationError, match="experts are not rounded to fp8 .*: .*not rounded"):
        held_problem(EXPERTS, plain, [Float8(), Float8()], unrounded, platform)


def test_a_linear_of_odd_size_stays_plain_when_the_others_are_rounded():
    quantization = ONLINE["mxfp4"]
    context = BuildContext(dtype=torch.float32, quantization=quantization)
    odd = ReplicatedLinear(50, 96, context, prefix="a.proj")
    even = ReplicatedLinear(64, 96, context, prefix="a.proj")
    assert (is_packed(odd, context.platform), is_packed(even, context.platform)) == (False, True)


@pytest.mark.parametrize("skipped", [(), ("up_proj",), ("up_proj", "gate_proj")])
def test_a_merged_linear_is_quantized_if_one_of_its_parts_is(skipped):
    context = BuildContext(dtype=torch.float32, quantization=OneFormat("test", INT8, skipped))
    merged = MergedColumnParallelLinear(64, {"gate_proj": 32, "up_proj": 32}, context, prefix="m.gate_up")
    assert is_packed(merged, context.platform) is (len(skipped) < 2)
    if len(skipped) == 1:  # two plans, whose outputs no kernel puts together
        assert not merged.end_with_silu_and_mul()


def test_the_head_stays_dense():
    assert held_by(ONLINE["int8"], "lm_head") == HeldFormat()
    assert held_by(ONLINE["int8"], "model.layers.0.mlp.down_proj") == INT8


def test_skipped_names_match_whole_components():
    choice = OneFormat("test", INT8, ("layers.1", "o_proj"))
    assert held_by(choice, "model.layers.1.mlp.up_proj") == HeldFormat()
    assert held_by(choice, "model.layers.11.mlp.up_proj") == INT8
    assert held_by(choice, "model.layers.0.self_attn.o_proj") == HeldFormat()


def make_int8_checkpoint(folder, skipped=("lm_head",)):
    """A checkpoint as bitsandbytes stores it, and the dense one that it stands for."""
    dense = make_tiny_llama(folder / "dense")
    twin = make_tiny_llama(folder / "int8")
    weights, exact = load_file(twin / "model.safetensors"), {}
    for name in list(weights):
        if name.endswith("_proj.weight") and not any(part in name for part in skipped):
            rounded, scale = Integers(8).quantize(weights[name]).values()
            stem = name.removesuffix("weight")
            weights |= {
                name: rounded,
                f"{stem}SCB": scale[:, 0] * 127,
                f"{stem}weight_format": torch.tensor(0, dtype=torch.uint8),
            }
            exact[name] = rounded * scale
    save_file(weights, twin / "model.safetensors")
    save_file(load_file(dense / "model.safetensors") | exact, dense / "model.safetensors")
    config = json.loads((twin / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "bitsandbytes",
        "load_in_8bit": True,
        "llm_int8_skip_modules": list(skipped),
    }
    (twin / "config.json").write_text(json.dumps(config))
    return twin, dense


@pytest.mark.parametrize("skipped", [("lm_head",), ("lm_head", "k_proj"), ("lm_head", "layers.1")])
def test_a_checkpoint_of_int8_weights_equals_its_dense_twin(tmp_path, skipped):
    twin, dense = make_int8_checkpoint(tmp_path, skipped)
    tokens = [[3, 1, 4, 1, 5, 9]]
    expected = load_model(dense).logits(tokens)[0]
    assert torch.allclose(load_model(twin).logits(tokens)[0], expected, atol=1e-4)


def test_shards_that_a_checkpoint_skips_stay_dense_within_a_merged_layer(tmp_path):
    model = load_model(make_int8_checkpoint(tmp_path, ("lm_head", "k_proj"))[0]).model
    parts = model.model.layers[0].self_attn.qkv_proj._parts
    assert [part.problem.weight_format for part in parts] == [Integers(8), Plain(parts[1].problem.dtype), Integers(8)]


@pytest.mark.parametrize(
    ("config", "requested", "says"),
    [
        (
            {"quant_method": "gptq", "bits": 3},
            None,
            "quantized as gptq with bits 3, which this version does not read; it reads 4",
        ),
        ({}, None, "quantized as none"),
        ("fp8", None, "quantization_config is 'fp8'; it must be an object"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "int4"},
            None,
            "as bitsandbytes with bnb_4bit_quant_type 'int4', .* in bfloat16 or a GGUF file",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", "already"),
        (
            None,
            "int3",
            "unknown quantization 'int3'; dense weights can be loaded as none, int8, int4, fp8, fp8_block, mxfp4$",
        ),
    ],
)
def test_unknown_quantization_is_refused_with_what_is_known(config, requested, says):
    with pytest.raises(UnsupportedQuantizationError, match=says):
        choose_quantization({} if config is None else {"quantization_config": config}, requested)


@pytest.mark.parametrize(("weights", "is_kept"), [(Integers(8), True), (Integers(8, 32), False)])
def test_codes_that_torch_multiplies_are_kept_where_no_kernel_reads_them(weights, is_kept):
    plain = LinearProblem(64, 64, torch.float32)
    bare = replace(detect_platform(), backends=("torch",), unavailable=(("native", "left out"), ("triton", "left out")))
    kept = held_problem(LINEARS, plain, (weights,), HeldFormat(), bare)
    assert kept == (replace(plain, weight_format=weights) if is_kept else plain)


def test_nothing_asked_for_and_nothing_in_the_config_is_dense():
    found = choose_quantization({}).for_layer("any.name", torch.bfloat16)
    assert (found.stored, found.held) == (PlainLayout(torch.bfloat16), HeldFormat())


@dataclass(frozen=True)
class Halved(Plain):
    """A format made here, unknown to the package: it holds half of each number."""

    dtype: torch.dtype = torch.float32
    name = "halved"

    def quantize(self, weight):
        return {"weight": weight / 2}


def test_layers_know_no_format_by_name(tiny_llama, monkeypatch):
    """It runs a whole model; what was asked of it by name is held so in every linear."""
    loaded = load_model(tiny_llama, dtype="float32")
    monkeypatch.setattr(linear_weights, "LINEARS", replace(LINEARS, read_by_torch=(Halved(),)))
    quantization = OneFormat("halved", HeldFormat(Halved()))
    model = build_model(loaded.checkpoint, replace(loaded.context, quantization=quantization))
    load_weights(model, loaded.checkpoint)
    hidden = torch.randn(2, 64)
    assert torch.allclose(model.compute_logits(hidden) * 2, loaded.model.compute_logits(hidden), atol=1e-5)


@pytest.mark.parametrize("weights", [Integers(8), Mxfp4()])
def test_the_logits_of_a_packed_head_are_sums_that_were_not_rounded(weights, monkeypatch):
    monkeypatch.setattr(linear_weights, "LINEARS", replace(LINEARS, read_by_torch=(weights,)))
    context = BuildContext(dtype=torch.bfloat16, quantization=OneFormat("test", HeldFormat(weights)))
    head = LMHead(64, 96, context)
    table = torch.randn(96, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    head.load_shard("lm_head.weight", table)
    head.finish()
    logits = head(torch.ones(3, 64, dtype=torch.bfloat16))
    exact = weights.dequantize(weights.quantize(table), 64)
    # What is multiplied is rounded to bfloat16 on some CPUs, and its codes are multiplied on others.
    sums = [multiplied.sum(dim=1).expand(3, 96) for multiplied in (exact, exact.bfloat16().float())]
    nearest = min(sums, key=lambda one: float((one - logits).abs().max()))
    torch.testing.assert_close(logits, nearest, atol=1e-4, rtol=1e-4)


def test_a_merged_layer_frees_its_sources_when_it_finishes():
    layer = MergedColumnParallelLinear(64, {"gate": 64, "up": 64}, BuildContext(dtype=torch.float32), prefix="m.x")
    for name, expected in expected_weights(layer).items():
        layer.load_shard(name, torch.zeros(expected.shape))
    assert isinstance(layer, Linear)
    assert layer._parts[0].matrices._tensors
    layer.finish()
    assert not layer._parts[0].matrices._tensors
