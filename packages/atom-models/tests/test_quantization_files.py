"""Quantizers that write what they did beside `config.json`: it is read as if it stood in there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_models import CheckpointError, load_model, model_requirements, open_checkpoint
from atom_models.hub.hugging_face import CONFIGS
from quantized_checkpoints import PUBLISHED, set_config, write_quantized
from tiny_models import make_tiny_llama

GPTQ = {"bits": 4, "group_size": 32, "damp_percent": 0.01, "desc_act": False, "sym": False, "true_sequential": True}
AWQ = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
MODELOPT = {
    "producer": {"name": "modelopt", "version": "0.33.0"},
    "quantization": {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": ["lm_head"],
    },
}
# A layout; the file beside the config; what is in it.
FILES = {
    "AutoGPTQ": ("gptq", "quantize_config.json", GPTQ),
    "GPTQModel": ("gptq", "quantize_config.json", GPTQ | {"quant_method": "gptq", "checkpoint_format": "gptq"}),
    "AutoAWQ": ("awq", "quant_config.json", AWQ),
    "AWQ of others": ("awq", "quantize_config.json", {"quant_method": "awq", "bits": 4, "group_size": 32}),
    "modelopt": ("nvfp4", "hf_quant_config.json", MODELOPT),
}


@pytest.fixture(scope="module")
def plain_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("llama") / "plain", hidden=96, intermediate=160, kv_heads=2)


def write_beside(folder: Path, plain: Path, layout: str, file: str, given: Any) -> Path:
    quantized, _ = write_quantized(folder, plain, PUBLISHED[layout])
    set_config(quantized, quantization_config=None)
    (quantized / file).write_text(json.dumps(given))
    return quantized


def logits(folder: Path) -> torch.Tensor:
    return load_model(folder, dtype="float32", progress=False).logits([[1, 2, 3, 4, 5]])[0]


@pytest.mark.parametrize("writer", FILES)
def test_a_file_beside_the_config_is_read_like_the_config(writer: str, plain_llama: Path, tmp_path: Path):
    layout, file, given = FILES[writer]
    beside = write_beside(tmp_path / "beside", plain_llama, layout, file, given)
    within, _ = write_quantized(tmp_path / "within", plain_llama, PUBLISHED[layout])
    assert torch.equal(logits(beside), logits(within))
    method = PUBLISHED[layout].config["quant_method"]
    assert model_requirements(open_checkpoint(beside)).published_format == method


def test_what_the_config_itself_says_comes_first(plain_llama: Path, tmp_path: Path):
    beside = write_beside(tmp_path, plain_llama, "gptq", "quantize_config.json", GPTQ | {"bits": 3})
    set_config(beside, quantization_config=PUBLISHED["gptq"].config)
    assert open_checkpoint(beside).config["quantization_config"] == PUBLISHED["gptq"].config


def test_a_plan_downloads_these_files_with_the_config():
    assert {"config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json"} <= set(CONFIGS)


def test_the_method_that_a_file_names_is_believed(plain_llama: Path, tmp_path: Path):
    given = GPTQ | {"quant_method": "gptq", "zero_point": True}
    beside = write_beside(tmp_path, plain_llama, "gptq", "quantize_config.json", given)
    assert open_checkpoint(beside).config["quantization_config"] == given


def test_modelopts_file_comes_before_older_ones(plain_llama: Path, tmp_path: Path):
    beside = write_beside(tmp_path, plain_llama, "nvfp4", "hf_quant_config.json", MODELOPT)
    (beside / "quantize_config.json").write_text(json.dumps(GPTQ))
    assert open_checkpoint(beside).config["quantization_config"]["quant_method"] == "modelopt"


def test_a_cache_alone_that_is_quantized_leaves_weights_plain(plain_llama: Path):
    file = plain_llama / "hf_quant_config.json"
    file.write_text(json.dumps({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}))
    assert open_checkpoint(plain_llama).config.get("quantization_config") is None
    file.unlink()


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("quantize_config.json", "{", "quantize_config.json is not valid JSON"),
        ("quantize_config.json", "[]", "quantize_config.json holds a JSON list, not an object"),
        ("quant_config.json", "{}", "quant_config.json names no quant_method, and has the fields of neither AutoGPTQ"),
        ("hf_quant_config.json", "{}", "hf_quant_config.json: quantization is None, not an object with quant_algo"),
        ("hf_quant_config.json", '{"quantization": {"quant_algo": "FP7"}}', "modelopt with quant_algo 'FP7'"),
        ("quantize_config.json", '{"bits": 3}', "gptq with bits 3, which this version does not read; it reads 4"),
        ("quant_config.json", '{"w_bit": 8}', "awq with bits 8"),
    ],
)
def test_a_file_that_says_nothing_or_what_is_not_read_is_named(
    file: str, text: str, says: str, plain_llama: Path, tmp_path: Path
):
    quantized = write_beside(tmp_path, plain_llama, "gptq", "quantize_config.json", GPTQ)
    (quantized / "quantize_config.json").unlink()
    (quantized / file).write_text(text)
    with pytest.raises(CheckpointError, match=says):
        load_model(quantized, progress=False)
