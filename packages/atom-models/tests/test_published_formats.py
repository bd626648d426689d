"""Quantized checkpoints: named by their `quantization_config`, sized where it says enough, refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_kernels.platform import Platform
from atom_models import (
    BuildContext,
    UnsupportedArchitectureError,
    build_model,
    describe_architecture,
    model_requirements,
    open_checkpoint,
)
from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError, published_format
from atom_models.quantization import choose_quantization
from published_configs import FOLDER, NAMES, architecture_of
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

# quantization_config -> name, bits of a quantized weight with its scales and zeros
FORMATS = [
    (AWQ, "awq int4", 4 + 20 / 128),
    (GPTQ, "gptq int8", 8),
    (GPTQ | {"dynamic": {"-:.*down_proj": {}}}, "gptq int8", None),
    (COMPRESSED, "compressed-tensors int4", 4 + 16 / 128),
    (COMPRESSED | {"ignore": ["lm_head", "model.layers.0.mlp.down_proj"]}, "compressed-tensors int4", None),
    (COMPRESSED | {"config_groups": {}}, "compressed-tensors", None),
    (QUARK, "quark mxfp4", 4.25),
    (QUARK | {"global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, "quark fp8_e4m3", 8),
    (NF4, "bitsandbytes nf4", 4.5),
    (NF4 | {"bnb_4bit_use_double_quant": True}, "bitsandbytes nf4", 4 + 8.125 / 64),
    (INT8, "bitsandbytes int8", 8),
    (QUARK | {"global_quant_config": {"weight": {"dtype": "fp4", "group_size": 16}}}, "quark fp4", None),
    (QUARK | {"global_quant_config": {"weight": {"dtype": "int8", "group_size": 32}}}, "quark int8", 8),
    (FP8, "fp8", 8 + 32 / 128**2),
    (FP8 | {"weight_block_size": [1, 128]}, "fp8", 8 + 32 / 128),
    (FP8 | {"weight_block_size": [64, 0]}, "fp8", 8),
    ({"quant_method": "fbgemm_fp8"}, "fbgemm-fp8", None),
    ({"quant_method": "torchao"}, "torchao", None),
]


def with_quantization(folder: Path, given: dict[str, Any]) -> Path:
    config = json.loads((make_tiny_llama(folder) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": given}))
    (folder / "model.safetensors").unlink()  # its weights are plain, and would decide
    return folder


@pytest.mark.parametrize(("given", "name", "bits"), FORMATS, ids=lambda value: str(value)[:40])
def test_the_format_of_a_checkpoint_is_what_its_config_says(given: dict[str, Any], name: str, bits: float | None):
    found = published_format({"quantization_config": given})
    assert found is not None
    assert (found.name, found.bits) == (name, bits)


def test_a_checkpoint_without_quantization_has_none():
    assert published_format({}) is None


@pytest.mark.parametrize("given", [GPTQ, NF4], ids=lambda given: given["quant_method"])
def test_a_plan_says_what_the_engine_says(given: dict[str, Any], tmp_path: Path):
    checkpoint = open_checkpoint(with_quantization(tmp_path / "m", given))
    with pytest.raises(UnsupportedQuantizationError) as refused:
        build_model(checkpoint, BuildContext(dtype=torch.float32))
    needs = model_requirements(checkpoint)
    assert needs.refusal == str(refused.value)
    assert "Use the model's checkpoint in bfloat16" in needs.refusal


@pytest.mark.parametrize("given", [AWQ, GPTQ, COMPRESSED, QUARK, NF4, FP8], ids=lambda given: given["quant_method"])
def test_a_plan_counts_the_weights_of_a_file(given: dict[str, Any], tmp_path: Path):
    checkpoint = open_checkpoint(with_quantization(tmp_path / "m", given))
    needs, found = model_requirements(checkpoint), published_format(checkpoint.config)
    assert found is not None
    assert found.bits is not None
    assert needs.published_format == found.name
    dense = needs.num_parameters - needs.num_linear_parameters
    assert needs.weight_bytes[found.name] == dense * 2 + int(needs.num_linear_parameters * found.bits / 8)


def test_what_the_engine_loads_is_not_refused_and_a_plan_says_how_it_is_held(tmp_path: Path):
    needs = model_requirements(open_checkpoint(with_quantization(tmp_path / "int8", INT8)))
    assert (needs.published_format, needs.refusal) == ("bitsandbytes int8", None)
    assert needs.held_format(Platform.nvidia("sm_90")) == "bitsandbytes int8"
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
    config = json.loads((FOLDER / f"{name}.json").read_text())
    found, listed = published_format(config), describe_architecture(architecture_of(name))
    assert listed.published_as == ("bfloat16" if found is None else found.name)
    choose_quantization(config)


@pytest.mark.parametrize(
    ("architecture", "part", "says"),
    [
        ("Gemma3ForConditionalGeneration", "vision_config", "text-only checkpoint such as one of Gemma3ForCausalLM"),
        ("Qwen2_5_VLForConditionalGeneration", "vision_config", "text-only checkpoint"),
        ("VoxtralForConditionalGeneration", "audio_config", "text-only checkpoint"),
    ],
)
def test_multimodal_checkpoints_are_refused_as_such(architecture: str, part: str, says: str, tmp_path: Path):
    config = {"architectures": [architecture], part: {"hidden_size": 8}, "text_config": {"hidden_size": 8}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedArchitectureError, match=rf"{architecture} is multimodal .*{part}.*{says}"):
        model_requirements(open_checkpoint(tmp_path))
