"""Quantized files that do not hold what their config says: one line names layer and tensor before any is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from atom_models import CheckpointError, load_model
from atom_models.quantization.layouts import AwqLayout, GptqLayout
from atom_models.weights.safetensors_source import SafetensorsSource
from quantized_checkpoints import PUBLISHED, set_config, write_gpt_oss, write_quantized
from tiny_architectures import make_tiny
from tiny_models import make_tiny_llama

DOWN = "model.layers.1.mlp.down_proj"
# Published files have these beside the tensors that are read.
UNREAD = ("input_scale", "weight_shape", "weight_format")


class WasRead(Exception):
    """A tensor was read: the file was taken for what the config says."""


@pytest.fixture(scope="module")
def plain_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("llama") / "plain", hidden=96, intermediate=160, kv_heads=2)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> Iterator[tuple[str, torch.Tensor]]:
        raise WasRead

    monkeypatch.setattr(SafetensorsSource, "read", read)


def faults(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor | None]]:
    """What a tensor might be instead."""
    yield "missing", None
    for dim in range(tensor.ndim):
        if tensor.shape[dim] > 1:
            yield f"cut in dimension {dim}", tensor.narrow(dim, 0, tensor.shape[dim] - 1)
    yield "empty", tensor.new_empty(0)
    yield "twice as long", torch.cat((tensor, tensor)) if tensor.ndim else tensor.expand(2)
    other = torch.int16 if tensor.dtype.is_floating_point else torch.float32
    yield f"in {other}", torch.zeros(tensor.shape, dtype=other)
    yield "in float8_e5m2", torch.zeros(tensor.shape).to(torch.float8_e5m2)


def is_told(folder: Path, layer: str, suffix: str) -> str | None:
    """None if one line names layer and tensor before any weight is read; else what happened instead."""
    try:
        load_model(folder, progress=False)
    except CheckpointError as error:
        words = str(error)
        return None if layer in words and suffix in words and "\n" not in words else words
    except WasRead:
        return "it was read"
    return "it was loaded"


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_fault_of_every_tensor_of_a_layer_is_told(name: str, plain_llama: Path, tmp_path: Path, unread: None):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED[name])
    whole, missed = load_file(quantized / "model.safetensors"), {}
    passed_over = UNREAD if name == "gptq sorted" else (*UNREAD, "g_idx")
    for full_name in [one for one in whole if one.startswith(DOWN) and not one.endswith(passed_over)]:
        suffix = full_name.removeprefix(f"{DOWN}.")
        for fault, instead in faults(whole[full_name]):
            if "quant_state" in suffix and not fault.startswith(("missing", "in ")):
                continue  # a text of any length
            write(quantized, {**whole, full_name: instead})
            if (instead_of_a_line := is_told(quantized, DOWN, suffix)) is not None:
                missed[suffix, fault] = instead_of_a_line
    assert missed == {}


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("fp8 tiles", "weight_scale_inv"), ("int4 packed with zeros", "weight_zero_point"), ("awq", "qzeros")],
)
def test_faults_of_one_expert_among_many_are_told(name: str, suffix: str, tmp_path: Path, unread: None):
    plain = make_tiny("qwen3_moe", tmp_path / "plain", moe_intermediate_size=32)
    quantized, _ = write_quantized(tmp_path, plain, PUBLISHED[name])
    whole, missed = load_file(quantized / "model.safetensors"), {}
    layer = "model.layers.1.mlp.experts.2.up_proj"
    for fault, instead in faults(whole[f"{layer}.{suffix}"]):
        write(quantized, {**whole, f"{layer}.{suffix}": instead})
        if (instead_of_a_line := is_told(quantized, layer, suffix)) is not None:
            missed[fault] = instead_of_a_line
    assert missed == {}


@pytest.mark.parametrize("slot", ["gate_up_proj", "down_proj"])
@pytest.mark.parametrize("suffix", ["blocks", "scales"])
def test_faults_of_all_experts_in_one_tensor_are_told(slot: str, suffix: str, tmp_path: Path, unread: None):
    plain = make_tiny("gpt_oss", tmp_path / "plain", hidden_size=96, intermediate_size=64)
    quantized, _ = write_gpt_oss(tmp_path, plain)
    whole, missed = load_file(quantized / "model.safetensors"), {}
    layer = f"model.layers.1.mlp.experts.{slot}"
    for fault, instead in faults(whole[f"{layer}_{suffix}"]):
        write(quantized, {**whole, f"{layer}_{suffix}": instead})
        if (instead_of_a_line := is_told(quantized, layer, suffix)) is not None:
            missed[fault] = instead_of_a_line
    assert missed == {}


def test_codes_in_another_dtype_are_told_with_both(plain_llama: Path, tmp_path: Path, unread: None):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED["fp8 rows"])
    whole = load_file(quantized / "model.safetensors")
    write(quantized, {**whole, f"{DOWN}.weight": whole[f"{DOWN}.weight"].float().to(torch.float8_e5m2)})
    says = "stored as weight in float8_e5m2, weight_scale in float32, but .* weight in float8_e4m3fn, weight_scale in"
    with pytest.raises(CheckpointError, match=f"{DOWN} is {says}"):
        load_model(quantized, progress=False)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("field", ["intermediate_size", "vocab_size"])
def test_sizes_that_the_config_has_otherwise_are_told(name: str, field: str, plain_llama: Path, tmp_path: Path, unread):
    """131 outputs are no whole words of eight codes."""
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED[name])
    set_config(quantized, **{field: 131})
    layer = "model.layers.0.mlp.gate_proj" if field == "intermediate_size" else "model.embed_tokens"
    assert is_told(quantized, layer, "131" if field == "vocab_size" else "weight") is None


@pytest.mark.parametrize("size", ["32", 0, -2, True, 32.0, [32]])
@pytest.mark.parametrize("name", ["awq", "gptq", "int4 packed"])
def test_groups_of_no_size_are_told_with_their_field(
    name: str, size: object, plain_llama: Path, tmp_path: Path, unread
):
    quantized, _ = write_quantized(tmp_path, plain_llama, PUBLISHED[name])
    given = json.loads(json.dumps(PUBLISHED[name].config))
    weights = given["config_groups"]["group_0"]["weights"] if name == "int4 packed" else given
    weights["group_size"] = size
    set_config(quantized, quantization_config=given)
    assert is_told(quantized, "group_size", repr(size)) is None


@pytest.mark.parametrize("layout", [AwqLayout(32), GptqLayout(32)], ids=str)
def test_codes_that_fill_no_word_have_one_of_their_own(layout: AwqLayout | GptqLayout):
    shapes = {name: one.shape for name, one in layout.expected(97, 97).items()}
    assert 13 in shapes["qweight"]
    assert shapes["qzeros"] == (4, 13)


def write(folder: Path, tensors: dict[str, torch.Tensor | None]) -> None:
    stored = {name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None}
    save_file(stored, folder / "model.safetensors")
