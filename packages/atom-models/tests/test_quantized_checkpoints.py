"""Quantized checkpoints: models of them compute with exactly the numbers that the files hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_kernels.formats import Integers, Offset
from atom_kernels.native import native_unavailable
from atom_kernels.platform import detect_platform
from atom_models import (
    BuildContext,
    CheckpointError,
    build_model,
    load_dummy_weights,
    load_model,
    load_named_weights,
    open_checkpoint,
)
from atom_models.layers.linear import Linear
from atom_models.layers.loadable import expected_weights
from atom_models.quantization.published import StoredQuantization, read_published
from atom_models.weights.safetensors_source import SafetensorsSource
from quantized_checkpoints import PUBLISHED, change, set_config, write_gpt_oss, write_quantized
from single_layers import is_packed
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama

if TYPE_CHECKING:
    pass

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [27]]


@pytest.fixture(scope="module")
def plain_llama(tmp_path_factory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("plain") / "m", hidden=96, intermediate=160, kv_heads=2)


def logits(folder: Path) -> torch.Tensor:
    return torch.cat(load_model(folder, progress=False).logits(PROMPTS))


def assert_equals_twin(quantized: Path, twin: Path) -> None:
    ours, exact = logits(quantized), logits(twin)
    # int8 is multiplied as int8, whose sums round in another order.
    assert torch.allclose(ours, exact, atol=2e-4)


@pytest.mark.parametrize("name", PUBLISHED)
def test_llama_computes_with_the_numbers_of_its_file(name: str, plain_llama: Path, tmp_path: Path):
    quantized, twin = write_quantized(tmp_path, plain_llama, PUBLISHED[name])
    assert_equals_twin(quantized, twin)
    assert not torch.allclose(logits(plain_llama), logits(twin), atol=1e-2)


@pytest.mark.parametrize(
    ("family", "name", "sizes"),
    [
        ("qwen3_moe", "fp8 tiles", {}),
        ("qwen3_moe", "int4 packed", {"moe_intermediate_size": 32}),
        ("mixtral", "fp8 tensors", {}),
        ("deepseek_v3", "fp8 tiles", {}),
        ("deepseek_v3", "mxfp4", {"q_lora_rank": 32, "v_head_dim": 16, "moe_intermediate_size": 32}),
        ("kimi_k2", "int4 packed", {"q_lora_rank": 32, "v_head_dim": 16, "moe_intermediate_size": 32}),
        ("glm4_moe", "fp8 rows", {}),
        ("gemma3", "int8 rows", {}),
        ("qwen3_moe", "nf4 nested", {}),
        ("deepseek_v3", "nf4", {}),
    ],
)
def test_families_compute_with_the_numbers_of_their_files(family: str, name: str, sizes: dict, tmp_path: Path):
    """What latents become keys and values by is held as plain numbers; they are those of the file."""
    plain = make_tiny(family, tmp_path / "plain", **sizes)
    assert_equals_twin(*write_quantized(tmp_path, plain, PUBLISHED[name]))


def test_inputs_that_were_measured_around_another_number_than_zero_are_left_as_they_are(plain_llama, tmp_path):
    published = PUBLISHED["int8 rows"]
    static = {"num_bits": 8, "type": "int", "strategy": "tensor", "dynamic": False, "symmetric": False}
    config = json.loads(json.dumps(published.config))
    config["config_groups"]["group_0"]["input_activations"] = static
    quantized, twin = write_quantized(tmp_path, plain_llama, replace(published, config=config))
    measured = {"input_scale": torch.tensor([0.02]), "input_zero_point": torch.tensor([17], dtype=torch.int8)}
    for linear in ("mlp.down_proj", "self_attn.q_proj"):
        change(quantized, **{f"model.layers.0.{linear}.{name}": tensor for name, tensor in measured.items()})
    assert_equals_twin(quantized, twin)
    quantization = StoredQuantization(read_published(config))
    found = quantization.for_layer("model.layers.0.mlp.down_proj", torch.float32).held
    assert found is not None
    assert found.inputs is None


def test_experts_of_kimi_are_quantized_and_all_else_is_not(tmp_path: Path):
    """The config of Kimi-K2-Thinking leaves out attention, shared experts and dense layers by patterns."""
    plain = make_tiny("kimi_k2", tmp_path / "plain", moe_intermediate_size=32)
    ignore = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]
    int4 = PUBLISHED["int4 packed"]
    skipped = ("self_attn", "shared_experts", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    published = replace(int4, config={**int4.config, "ignore": ignore}, skipped=skipped)
    assert_equals_twin(*write_quantized(tmp_path, plain, published))


def test_layers_of_a_gptq_file_may_differ_by_its_dynamic_rules(plain_llama: Path, tmp_path: Path):
    """Groups of 16 in the second layer, and attention left as it was."""
    gptq = PUBLISHED["gptq"]
    config = {**gptq.config, "dynamic": {r"-:.*\.self_attn\.": {}, r"+:.*\.1\..*": {"group_size": 16}}}
    first = replace(gptq, config=config, skipped=(*gptq.skipped, "self_attn", "layers.1."))
    fine = Integers(4, 16, Offset.ZERO_POINT, torch.float16)
    second = replace(first, weight_format=fine, skipped=(*gptq.skipped, "self_attn", "layers.0."))
    folders = write_quantized(tmp_path / "a", plain_llama, first), write_quantized(tmp_path / "b", plain_llama, second)
    for folder, other in zip(*folders, strict=True):
        both = [
            {name: tensor for name, tensor in load_file(place / "model.safetensors").items() if wanted(name)}
            for place, wanted in ((folder, lambda name: ".1." not in name), (other, lambda name: ".1." in name))
        ]
        save_file(both[0] | both[1], folder / "model.safetensors")
    assert_equals_twin(*folders[0])
    set_config(folders[0][0], quantization_config=dict(gptq.config))
    with pytest.raises(CheckpointError, match=r"layers\.1\..* is \[6, 20\], but the config calls for \[3, 20"):
        logits(folders[0][0])


def test_gpt_oss_computes_with_the_mxfp4_numbers_of_its_file(tmp_path: Path):
    plain = make_tiny("gpt_oss", tmp_path / "plain", hidden_size=96, intermediate_size=64)
    quantized, twin = write_gpt_oss(tmp_path, plain)
    assert torch.equal(logits(quantized), logits(twin))


def test_shards_with_unlike_scales_are_not_quantized_again(plain_llama: Path, tmp_path: Path):
    """q, k and v are one matrix here, and have a scale each in the file: it becomes one for each row."""
    quantized, twin = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tensors"])
    for folder in (quantized, twin):
        weights = load_file(folder / "model.safetensors")
        for name in list(weights):
            if ("k_proj" in name and "weight_scale" in name) or (folder == twin and "k_proj.weight" in name):
                weights[name] = weights[name] * 8
        save_file(weights, folder / "model.safetensors")
    assert_equals_twin(quantized, twin)


def test_a_layer_that_the_config_calls_quantized_and_the_file_holds_plain_is_plain(plain_llama: Path, tmp_path: Path):
    """Published mixtures leave layers out of quantization without saying so: those of multi-token prediction."""
    quantized, twin = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tiles"])
    weights, exact = load_file(quantized / "model.safetensors"), load_file(twin / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    del weights[f"{name}_scale_inv"]
    weights[name] = exact[name]
    save_file(weights, quantized / "model.safetensors")
    assert_equals_twin(quantized, twin)


def test_a_layer_that_the_config_leaves_out_and_the_file_holds_quantized_is_quantized(
    plain_llama: Path, tmp_path: Path
):
    quantized, twin = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tiles"])
    config = {**PUBLISHED["fp8 tiles"].config, "modules_to_not_convert": ["model.layers.0.self_attn"]}
    set_config(quantized, quantization_config=config)
    assert_equals_twin(quantized, twin)


def test_a_shape_that_is_not_the_layers_is_told_with_its_name(plain_llama: Path, tmp_path: Path):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["int4 packed"])
    change(quantized, **{f"{DOWN}.weight_shape": torch.tensor([64, 64])})
    with pytest.raises(CheckpointError, match=rf"{DOWN}.*weight_shape says \[64, 64\]"):
        load_model(quantized, progress=False)


DOWN = "model.layers.1.mlp.down_proj"


# Name of the layout; tensors of one layer that are renamed, or left out (None); tensors that are replaced; fields of
# the config; what is said of it.
BAD_FILES = {
    "scales of another name": (
        *("fp8 tiles", {"weight_scale_inv": "scales_of_mine"}, {}, {}),
        rf"{DOWN} is stored as scales_of_mine, weight, but the config calls for weight, weight_scale_inv",
    ),
    "truncated scales of tiles": ("fp8 tiles", {}, {"weight_scale_inv": torch.ones(1, 1)}, {}, r"is \[1, 1\], but"),
    "truncated scales of rows": ("fp8 rows", {}, {"weight_scale": torch.ones(95, 1)}, {}, r"is \[95, 1\], but"),
    "truncated scales of groups": ("int4 packed", {}, {"weight_scale": torch.ones(96, 3)}, {}, r"calls for \[96, 5\]"),
    "truncated exponents": ("mxfp4", {}, {"weight_scale": torch.ones(96, 4, dtype=torch.uint8)}, {}, r"is \[96, 4\]"),
    "truncated codes": ("int4 packed", {}, {"weight_packed": torch.ones(96, 19, dtype=torch.int32)}, {}, r"\[96, 20\]"),
    "scales of another kind": (
        "int4 packed",
        {},
        {"weight_scale": torch.ones(96, 5).int()},
        {},
        r"is torch.int32, but",
    ),
    "wrong group of awq": ("awq", {}, {}, {"group_size": 64}, r"qzeros is \[\d+, \d+\], but the config calls for"),
    "wrong group of gptq": ("gptq", {}, {}, {"group_size": 128}, r"qzeros is \[\d+, \d+\], but the config calls for"),
    "no zero points in awq": ("awq", {"qzeros": None}, {}, {}, r"stored as qweight, scales, but .* qzeros"),
    "no zero points in gptq": ("gptq", {"qzeros": None}, {}, {}, r"stored as g_idx, qweight, scales, but .* qzeros"),
    "no zero points": ("int4 packed with zeros", {"weight_zero_point": None}, {}, {}, r"but .* weight_zero_point"),
    "no groups of inputs": ("gptq sorted", {"g_idx": None}, {}, {}, r"but the config calls for .*g_idx"),
    "no scale of the tensor": ("nvfp4", {"weight_scale_2": None}, {}, {}, r"but the config calls for .*weight_scale_2"),
    "zero points that the config denies": (
        *("int4 packed", {}, {"weight_zero_point": torch.zeros(12, 5, dtype=torch.int32)}, {}),
        r"1 unexpected weight: .*weight_zero_point$",
    ),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_what_is_wrong_with_a_file_is_told_before_any_weight_is_loaded(what, plain_llama, tmp_path, monkeypatch):
    name, renamed, tensors, fields, says = BAD_FILES[what]
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED[name])
    rename = {f"{DOWN}.{old}": new and f"{DOWN}.{new}" for old, new in renamed.items()}
    change(quantized, rename, **{f"{DOWN}.{suffix}": tensor for suffix, tensor in tensors.items()})
    set_config(quantized, quantization_config={**PUBLISHED[name].config, **fields})
    read = []
    monkeypatch.setattr(SafetensorsSource, "read", lambda *_: read.append(1))
    with pytest.raises(CheckpointError, match=says) as caught:
        load_model(quantized, progress=False)
    assert "model.layers." in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not read


@pytest.mark.parametrize(("name", "scale"), [("fp8 tiles", "weight_scale_inv"), ("awq", "scales"), ("gptq", "scales")])
def test_scales_that_are_no_numbers_are_told_with_the_layers_name(name: str, scale: str, plain_llama, tmp_path):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED[name])
    found = load_file(quantized / "model.safetensors")[f"{DOWN}.{scale}"]
    change(quantized, **{f"{DOWN}.{scale}": torch.full_like(found, torch.nan)})
    with pytest.raises(CheckpointError, match=rf"the weight {DOWN}\..*: .*a scale is not a finite number"):
        load_model(quantized, progress=False)


def test_matrices_that_are_one_in_the_file_may_have_one_scale_for_all_of_them():
    """Some writers fuse q, k and v, and one number fills what would be three slots."""
    published = read_published(PUBLISHED["fp8 tensors"].config)
    context = BuildContext(dtype=torch.float32, quantization=StoredQuantization(published))
    layer = Linear(32, 96, context, prefix="layer.qkv_proj")
    assert set(expected_weights(layer)) == {"layer.qkv_proj.weight", "layer.qkv_proj.weight_scale"}
    weight = torch.randn(96, 32).to(torch.float8_e4m3fn)
    stored = {"layer.qkv_proj.weight": weight, "layer.qkv_proj.weight_scale": torch.tensor(0.25)}
    load_named_weights(torch.nn.ModuleList([layer]), stored.items(), "the file")
    x = torch.randn(3, 32)
    torch.testing.assert_close(layer(x), x @ (weight.float() * 0.25).t(), rtol=1e-4, atol=1e-4)


def test_q_k_and_v_that_are_one_in_the_file_of_a_model_without_such_a_matrix_are_named(plain_llama, tmp_path):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 tensors"])
    at = "model.layers.1.self_attn"
    weights = load_file(quantized / "model.safetensors")
    parts = [f"{at}.{name}_proj" for name in "qkv"]
    fused = torch.cat([weights[f"{part}.weight"].view(torch.uint8) for part in parts]).view(torch.float8_e4m3fn)
    gone = {f"{part}.{suffix}": None for part in parts for suffix in ("weight", "weight_scale", "input_scale")}
    one_scale = {f"{at}.qkv_proj.weight_scale": torch.tensor(1.0)}
    change(quantized, gone, **{f"{at}.qkv_proj.weight": fused}, **one_scale)
    with pytest.raises(CheckpointError) as caught:
        load_model(quantized, progress=False)
    missing, unexpected = str(caught.value).split("; ")
    assert missing.endswith(", ".join(f"{part}.{suffix}" for part in parts for suffix in ("weight", "weight_scale")))
    assert unexpected == f"2 unexpected weights: {at}.qkv_proj.weight, {at}.qkv_proj.weight_scale"


@pytest.mark.parametrize(("slot", "left"), [("gate_up_proj", "scales"), ("down_proj", "blocks")])
def test_experts_of_which_all_lack_their_codes_or_scales_are_named(slot: str, left: str, tmp_path: Path):
    plain = make_tiny("gpt_oss", tmp_path / "plain", hidden_size=96, intermediate_size=64)
    quantized, _ = write_gpt_oss(tmp_path, plain)
    lacking = "blocks" if left == "scales" else "scales"
    change(quantized, {f"model.layers.1.mlp.experts.{slot}_{lacking}": None})
    says = rf"model.layers.1.mlp.experts.{slot} is stored as .*{left}, but the config calls for .*{lacking}"
    with pytest.raises(CheckpointError, match=says):
        load_model(quantized, progress=False)


@pytest.mark.parametrize("name", PUBLISHED)
def test_linears_stay_packed_where_a_kernel_reads_the_format(name: str, plain_llama: Path, tmp_path: Path):
    quantized, twin = write_quantized(tmp_path, plain_llama, PUBLISHED[name])
    layer, plain = (load_model(folder).model.model.layers[0].mlp.gate_up_proj for folder in (quantized, twin))
    if native_unavailable("linear_quantized"):
        pytest.skip("no C kernels here")
    # Sorted inputs have a scale each, and blocks of nf4 may go on in the next row: no kernel reads these.
    stays_packed = name not in ("gptq sorted", "nf4", "nf4 nested")
    assert is_packed(layer, detect_platform()) is stays_packed
    held = layer._apply.weight_bytes / plain._apply.weight_bytes
    most = 1 if not stays_packed else 0.3 if "8" in name else 0.2
    assert most / 2 < held <= most


def test_nf4_becomes_plain_numbers_in_the_dtype_of_the_model(plain_llama: Path, tmp_path: Path):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["nf4"])
    [weights] = load_model(quantized, "bfloat16").model.model.layers[0].mlp.gate_up_proj.weights()
    assert (weights.stored, weights.held().held) == ("nf4", "bfloat16")


# The error of logits that one rounding of each weight leaves in a tiny model of sharp weights.
ROUNDED = [("int8", 0.03), ("fp8", 0.15), ("fp8_block", 0.15), ("int4", 0.35), ("mxfp4", 0.6)]


@pytest.mark.parametrize(("name", "most"), ROUNDED)
def test_plain_weights_are_rounded_as_they_load(name: str, most: float, plain_llama: Path):
    exact = torch.cat(load_model(plain_llama).logits(PROMPTS))
    rounded = torch.cat(load_model(plain_llama, quantization=name).logits(PROMPTS))
    assert 0 < (rounded - exact).norm() / exact.norm() <= most


@pytest.mark.parametrize("name", PUBLISHED)
def test_dummy_weights_of_a_quantized_model_give_finite_numbers(name: str, plain_llama: Path, tmp_path: Path):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED[name])
    (quantized / "model.safetensors").unlink()
    checkpoint = open_checkpoint(quantized)
    model = build_model(checkpoint, BuildContext(dtype=torch.float32))
    load_dummy_weights(model, checkpoint)
    assert torch.isfinite(model.compute_logits(torch.randn(2, 96))).all()  # pyright: ignore[reportCallIssue]


def test_groups_of_inputs_that_contradict_the_config_are_told_with_the_layers_name(plain_llama, tmp_path):
    """Inputs in another order than the config says would get the scales of others."""
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["gptq"])
    found = load_file(quantized / "model.safetensors")[f"{DOWN}.g_idx"]
    change(quantized, **{f"{DOWN}.g_idx": found.flip(0)})
    says = (
        rf"the weight {DOWN}\..*: .*g_idx puts input 0 into group {int(found[-1])}, and the config, whose desc_act is"
    )
    with pytest.raises(CheckpointError, match=says):
        load_model(quantized, progress=False)


def test_groups_of_inputs_in_order_may_be_there_or_not(plain_llama, tmp_path):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["gptq"])
    with_groups = load_model(quantized, progress=False).logits([[3, 1, 4]])[0]
    change(quantized, {f"{DOWN}.g_idx": None})
    assert torch.equal(load_model(quantized, progress=False).logits([[3, 1, 4]])[0], with_groups)
