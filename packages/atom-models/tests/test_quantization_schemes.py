"""Schemes: chosen by layer name, changing neither layers nor models."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_kernels.formats import Integers
from atom_kernels.linear import linear
from atom_kernels.platform import detect_platform
from atom_models import BuildContext, build_model, load_model, open_checkpoint
from atom_models.layers import Linear, MergedColumnParallelLinear, ReplicatedLinear
from atom_models.quantization import (
    ONLINE,
    Dense,
    Int8FewRows,
    OneScheme,
    Packed,
    UnsupportedQuantizationError,
    choose_quantization,
)
from atom_models.quantization.layouts import PlainLayout
from tiny_models import make_tiny_llama


def rounded_linear(x, weight, bias):
    return linear(x, Integers(8).dequantize(Integers(8).quantize(weight), weight.shape[1]), bias)


def make_layer(scheme, dtype=torch.bfloat16, bias=True):
    context = BuildContext(dtype=dtype, quantization=OneScheme("test", scheme))
    layer = ReplicatedLinear(64, 96, context, prefix="a.proj", bias=bias)
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, expected in layer.expected_weights().items():
        weights[name] = torch.randn(expected.shape, generator=generator).to(expected.dtype)
        layer.load_shard(name, weights[name])
    layer.finish()
    return layer, weights["a.proj.weight"], weights["a.proj.bias"]


@pytest.mark.parametrize("num_rows", [1, 4, 5, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_int8_weights_are_the_rounded_weights(dtype, num_rows):
    layer, weight, bias = make_layer(Packed(Integers(8)), dtype)
    x = torch.randn(num_rows, 64).to(dtype)
    expected = rounded_linear(x, weight, bias)
    tolerance = {"atol": 0.15, "rtol": 0.02} if dtype is torch.bfloat16 else {"atol": 1e-4, "rtol": 1e-4}
    assert torch.allclose(layer(x), expected, **tolerance)


def test_a_scheme_may_have_a_plan_that_differs_by_the_number_of_rows():
    layer, weight, bias = make_layer(Int8FewRows(max_rows=4), torch.float32)
    x = torch.randn(5, 64)
    rounded, dense = rounded_linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias)
    assert (rounded - dense).abs().max() > 0.01
    assert torch.allclose(layer(x), dense, atol=1e-4)
    assert torch.allclose(layer(x[:4]), rounded[:4], atol=1e-4)


def test_the_plan_of_such_a_scheme_tells_its_rows_and_bytes():
    plan = make_layer(Int8FewRows(max_rows=4), torch.float32)[0]._apply.plan
    assert next(row.max_rows for row in plan.rows) == 4
    assert plan.rows[-1].max_rows is None
    assert dict(plan.layouts)["int8"] == 64 * 96 + 4 * 96 + 4 * 96


@pytest.mark.parametrize("quantization", ["int8", "int8-few-rows"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_quantized_on_loading_stays_near_the_dense_one(tiny_llama, quantization, dtype):
    quantized, dense = load_model(tiny_llama, dtype=dtype, quantization=quantization), load_model(tiny_llama)
    for tokens in ([3, 1, 4], list(range(5, 60))):
        ours, exact = quantized.logits([tokens])[0], dense.logits([tokens])[0]
        assert (ours - exact).abs().mean() < 0.1 * exact.std()


def scheme_for(quantization, name):
    return quantization.for_layer(name, torch.bfloat16).scheme


def test_rounding_is_refused_where_no_kernel_reads_the_format(tiny_llama):
    """A machine that is fast at bfloat16 has no kernels for packed weights: they would silently stay plain."""
    platform = replace(detect_platform(), fast_bf16=True)
    context = BuildContext(dtype=torch.bfloat16, platform=platform, quantization=ONLINE["int4"])
    with pytest.raises(ValueError, match="not rounded to int4 per 32 .* here: sums in float32, which is slower"):
        build_model(open_checkpoint(tiny_llama), context)


def test_a_linear_of_odd_size_stays_plain_when_the_others_are_rounded():
    quantization = ONLINE["mxfp4"]
    context = BuildContext(dtype=torch.float32, quantization=quantization)
    odd = ReplicatedLinear(50, 96, context, prefix="a.proj")
    even = ReplicatedLinear(64, 96, context, prefix="a.proj")
    assert (odd.is_quantized(context.platform), even.is_quantized(context.platform)) == (False, True)


def test_the_head_stays_dense():
    assert scheme_for(ONLINE["int8"], "lm_head") == Dense()
    assert scheme_for(ONLINE["int8"], "model.layers.0.mlp.down_proj") == Packed(Integers(8))


def test_skipped_names_match_whole_components():
    choice = OneScheme("test", Packed(Integers(8)), ("layers.1", "o_proj"))
    assert scheme_for(choice, "model.layers.1.mlp.up_proj") == Dense()
    assert scheme_for(choice, "model.layers.11.mlp.up_proj") == Packed(Integers(8))
    assert scheme_for(choice, "model.layers.0.self_attn.o_proj") == Dense()


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
    assert [part.scheme for part in parts] == [Packed(Integers(8)), Dense(), Packed(Integers(8))]


@pytest.mark.parametrize(
    ("config", "requested", "says"),
    [
        (
            {"quant_method": "gptq", "bits": 3},
            None,
            "quantized as gptq with bits 3, which this version does not read; it reads 4",
        ),
        ({}, None, "quantized as none"),
        ("fp8", None, "quantized as fp8, which"),
        (
            {"quant_method": "bitsandbytes", "load_in_4bit": True},
            None,
            "as bitsandbytes with bnb_4bit_quant_type 'fp4', .* in bfloat16 or a GGUF file",
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", "already"),
        (
            None,
            "int3",
            "unknown quantization 'int3'; dense weights can be loaded as none, int8, int4, fp8, fp8_block, mxfp4, ",
        ),
    ],
)
def test_unknown_quantization_is_refused_with_what_is_known(config, requested, says):
    with pytest.raises(UnsupportedQuantizationError, match=says):
        choose_quantization({} if config is None else {"quantization_config": config}, requested)


def test_nothing_asked_for_and_nothing_in_the_config_is_dense():
    found = choose_quantization({}).for_layer("any.name", torch.bfloat16)
    assert (found.stored, found.scheme) == (PlainLayout(torch.bfloat16), Dense())


def test_layers_know_no_scheme_by_name(tiny_llama):
    """A scheme made here, unknown to the package, runs a whole model."""
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Halved(Dense):
        name: str = "halved"

        def finish(self, spec, weights):
            return super().finish(spec, {name: tensor / 2 for name, tensor in weights.items()})

    loaded = load_model(tiny_llama)
    from atom_models import load_weights

    model = build_model(loaded.checkpoint, replace(loaded.context, quantization=OneScheme("halved", Halved())))
    load_weights(model, loaded.checkpoint)
    hidden = torch.randn(2, 64)
    assert torch.allclose(model.compute_logits(hidden) * 2, loaded.model.compute_logits(hidden), atol=1e-5)


def test_a_merged_layer_frees_its_sources_when_it_finishes():
    layer = MergedColumnParallelLinear(64, {"gate": 64, "up": 64}, BuildContext(dtype=torch.float32), prefix="m.x")
    for name, expected in layer.expected_weights().items():
        layer.load_shard(name, torch.zeros(expected.shape))
    assert isinstance(layer, Linear)
    assert layer._parts[0].matrices._tensors
    layer.finish()
    assert not layer._parts[0].matrices._tensors
