"""Quantized checkpoints: named by their `quantization_config`, sized where it says enough, refused in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from atom_kernels.platform import Platform
from atom_models import (
    BuildContext,
    UnsupportedArchitectureError,
    build_model,
    describe_architecture,
    model_requirements,
    open_checkpoint,
)
from atom_models.checkpoint.config_fields import normalize_config
from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError, quantization_method
from atom_models.quantization import choose_quantization
from published_configs import FOLDER, NAMES, architecture_of
from quantized_checkpoints import PUBLISHED, write_gpt_oss, write_quantized
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "modules_to_not_convert": None}
GPTQ = {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": False}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}}},
    "ignore": ["lm_head"],
}
QUARK = {
    "quant_method": "quark",
    "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32, "qscheme": "per_group"}},
    "layer_quant_config": {},
    "exclude": ["lm_head"],
}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}

METHODS = [
    (AWQ, "awq"),
    (COMPRESSED, "compressed-tensors"),
    ({"quant_method": "fbgemm_fp8"}, "fbgemm-fp8"),
    ({"quant_method": "TorchAO"}, "torchao"),
    ({}, "none"),
    ("fp8", "fp8"),
]


def with_quantization(folder: Path, given: dict[str, Any]) -> Path:
    config = json.loads((make_tiny_llama(folder) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": given}))
    (folder / "model.safetensors").unlink()  # its weights are plain, and would decide
    return folder


@pytest.mark.parametrize(("given", "method"), METHODS, ids=lambda value: str(value)[:40])
def test_the_method_of_a_checkpoint_is_what_its_config_says(given: Any, method: str):
    assert quantization_method({"quantization_config": given}) == method


def test_a_checkpoint_without_quantization_has_none():
    assert quantization_method({}) is None


@pytest.mark.parametrize("given", [GPTQ, AWQ | {"version": "gemv"}], ids=lambda given: given["quant_method"])
def test_a_plan_says_what_the_engine_says(given: dict[str, Any], tmp_path: Path):
    checkpoint = open_checkpoint(with_quantization(tmp_path / "m", given))
    with pytest.raises(UnsupportedQuantizationError) as refused:
        build_model(checkpoint, BuildContext(dtype=torch.float32))
    needs = model_requirements(checkpoint)
    assert needs.refusal == str(refused.value)
    assert "Use the model's checkpoint in bfloat16" in needs.refusal


SORTED_WITH_ZEROS = replace(PUBLISHED["gptq"], config={**PUBLISHED["gptq"].config, "desc_act": True})
# Formats that layers hold in more bytes than files, and the bytes of an element of each tensor there: scales in float32
# instead of bfloat16 or for each input instead of 32, eight zero points of a word in a byte each.
WIDER = {
    "int4 packed": {"weight_scale": 4, "weight_shape": 0},
    "int4 packed with zeros": {"weight_scale": 4, "weight_zero_point": 8, "weight_shape": 0},
    "gptq sorted": {"scales": 2 * 32, "qzeros": 0, "g_idx": 0},
    "gptq sorted with zeros": {"scales": 2 * 32, "qzeros": 8 * 32, "g_idx": 0},
}


def bytes_of_files(quantized: Path, plain: Path) -> int:
    """What was quantized as it is stored, and the rest in bfloat16."""
    dense = {name: tensor.dtype for name, tensor in load_file(plain / "model.safetensors").items()}
    tensors = load_file(quantized / "model.safetensors")
    return sum(x.numel() * 2 if dense.get(name) == x.dtype else x.nbytes for name, x in tensors.items())


@pytest.mark.parametrize(
    ("family", "name"),
    [
        *(("llama", name) for name in PUBLISHED if name not in WIDER),
        ("qwen3_moe", "fp8 tiles"),
        ("qwen3_moe", "nf4"),
        ("mixtral", "fp8 rows"),
        ("gpt_oss", "mxfp4"),
    ],
)
def test_a_plan_counts_the_weights_of_a_file(family: str, name: str, tmp_path: Path):
    if family == "gpt_oss":
        plain = make_tiny("gpt_oss", tmp_path / "plain", intermediate_size=32, hidden_size=32)
        quantized, _ = write_gpt_oss(tmp_path, plain)
    else:
        sizes = {"moe_intermediate_size": 32} if family == "qwen3_moe" else {}
        llama = make_tiny_llama(tmp_path / "plain", hidden=96, intermediate=160, kv_heads=2)
        plain = llama if family == "llama" else make_tiny(family, tmp_path / "other", **sizes)
        quantized, _ = write_quantized(tmp_path, plain, PUBLISHED[name])
    needs = model_requirements(open_checkpoint(quantized))
    assert (needs.refusal, needs.num_parameters) == (None, model_requirements(open_checkpoint(plain)).num_parameters)
    assert needs.weight_bytes[str(needs.published_format)] == pytest.approx(bytes_of_files(quantized, plain), rel=0.03)


@pytest.mark.parametrize("name", WIDER)
def test_a_plan_counts_what_is_held_where_files_are_smaller(name: str, tmp_path: Path):
    plain = make_tiny_llama(tmp_path / "plain", hidden=96, intermediate=160, kv_heads=2)
    quantized, _ = write_quantized(tmp_path, plain, SORTED_WITH_ZEROS if "sorted with" in name else PUBLISHED[name])
    dense, held = load_file(plain / "model.safetensors").keys(), 0
    for full_name, tensor in load_file(quantized / "model.safetensors").items():
        suffix = full_name.rpartition(".")[2]
        width = 2 if full_name in dense else WIDER[name].get(suffix, tensor.itemsize)
        held += tensor.numel() * width
    needs = model_requirements(open_checkpoint(quantized))
    assert needs.weight_bytes[str(needs.published_format)] == held


def test_what_the_engine_loads_is_not_refused_and_a_plan_says_how_it_is_held(tmp_path: Path):
    needs = model_requirements(open_checkpoint(with_quantization(tmp_path / "int8", INT8)))
    assert (needs.published_format, needs.refusal) == ("bitsandbytes", None)
    assert needs.held_format(Platform.nvidia("sm_90")) == "bitsandbytes"
    needs = model_requirements(open_checkpoint(with_quantization(tmp_path / "fp8", FP8)))
    assert (needs.published_format, needs.refusal) == ("fp8", None)
    assert needs.held_format(Platform.nvidia("sm_90")) == "fp8"


def test_layers_that_cannot_be_held_in_a_readable_format_are_refused_in_the_plan_too(tmp_path: Path):
    given = INT8 | {"llm_int8_skip_modules": ["model.layers.0"]}
    folder = make_tiny_llama(tmp_path / "m", tie=True)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": given}
    (folder / "config.json").write_text(json.dumps(config))
    needs = model_requirements(open_checkpoint(folder))
    assert "lm_head is tied to the embedding and cannot be stored as int8" in str(needs.refusal)


@pytest.mark.parametrize("name", NAMES)
def test_lists_of_models_say_how_weights_are_published_and_those_are_read(name: str):
    config = normalize_config(json.loads((FOLDER / f"{name}.json").read_text()))
    method, listed = quantization_method(config), describe_architecture(architecture_of(name))
    assert listed.published_as == (method or "bfloat16")
    choose_quantization(config)


@pytest.mark.parametrize(
    ("architecture", "part", "says"),
    [
        ("Gemma3nForConditionalGeneration", "vision_config", "text-only checkpoint such as one of Gemma3For"),
        ("Qwen2VLForConditionalGeneration", "vision_config", "text-only checkpoint"),
        ("VoxtralForConditionalGeneration", "audio_config", "text-only checkpoint"),
    ],
)
def test_multimodal_checkpoints_are_refused_as_such(architecture: str, part: str, says: str, tmp_path: Path):
    config = {"architectures": [architecture], part: {"hidden_size": 8}, "text_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedArchitectureError, match=rf"{architecture} is multimodal .*{part}.*{says}"):
        model_requirements(open_checkpoint(tmp_path))
