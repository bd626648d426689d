"""The headers of a checkpoint's tensors inside vLLM: from the folder, or as vLLM knows them from the hub."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from atom_kernels.platform import Platform, use_platform
from atom_models import CheckpointError
from atom_models.quantization import Header
from atom_vllm import stored_weights
from atom_vllm.engine_settings import checkpoint_of
from atom_vllm.stored_weights import headers_of
from stub_vllm import stub_vllm


def config(model: str, quantization: str | None = "fp8") -> Any:
    return SimpleNamespace(model_config=SimpleNamespace(model=model, revision="main", quantization=quantization))


def headers_from_hub(monkeypatch: pytest.MonkeyPatch, entries: dict[str, Any], quantization: str | None = "fp8") -> Any:
    with stub_vllm():
        module: Any = ModuleType("vllm.transformers_utils.config")
        module.get_safetensors_params_metadata = lambda model, *, revision: entries
        monkeypatch.setitem(sys.modules, "vllm.transformers_utils", ModuleType("vllm.transformers_utils"))
        monkeypatch.setitem(sys.modules, "vllm.transformers_utils.config", module)
        return headers_of(config("owner/model", quantization))


def test_headers_come_from_the_folder(tmp_path: Path) -> None:
    save_file({"a.weight": torch.zeros(2, 3).to(torch.float8_e4m3fn)}, tmp_path / "model.safetensors")
    found = headers_of(config(str(tmp_path)))
    assert found is not None
    assert found.tensors == {"a.weight": Header((2, 3), torch.float8_e4m3fn)}


def test_headers_of_a_model_on_the_hub_come_from_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"a.weight": {"dtype": "F8_E4M3", "shape": [2, 3], "data_offsets": [0, 6]}}
    assert headers_from_hub(monkeypatch, entries).tensors == {"a.weight": Header((2, 3), torch.float8_e4m3fn)}


def test_a_number_that_torch_cannot_hold_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"a\.weight is F4, which torch cannot hold"):
        headers_from_hub(monkeypatch, {"a.weight": {"dtype": "F4", "shape": [2, 3]}})


@pytest.mark.parametrize(("entries", "quantization"), [({}, "fp8"), ({"a": {"dtype": "F32", "shape": []}}, None)])
def test_there_are_none_where_nobody_can_tell_or_nobody_needs_them(monkeypatch, entries, quantization) -> None:
    assert headers_from_hub(monkeypatch, entries, quantization) is None


def test_a_checkpoint_has_the_quantization_that_was_published() -> None:
    """vLLM has renamed the method in the config by then."""
    published = {"quant_method": "gpt_oss_mxfp4", "modules_to_not_convert": ["lm_head"]}
    hf_config = SimpleNamespace(quantization_config=published, to_dict=lambda: {"quantization_config": published})
    made = checkpoint_of(SimpleNamespace(model_config=SimpleNamespace(model="m", hf_config=hf_config)))
    assert made.config["quantization_config"] == {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}


def test_a_checkpoint_is_read_where_a_kernel_rounds_activations_as_it_says() -> None:
    given = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    with use_platform(Platform.rocm("gfx942", device="cpu")):
        assert stored_weights._why_not_read(given, torch.bfloat16) is None


INT8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "strategy": "token",
                "symmetric": True,
                "dynamic": True,
            },
        }
    },
}


def why_left(published: dict[str, Any], **fields: Any) -> str | None:
    hf_config = SimpleNamespace(quantization_config=published, num_hidden_layers=4, **fields)
    model = SimpleNamespace(quantization="compressed-tensors", hf_config=hf_config, dtype=torch.bfloat16)
    with use_platform(Platform.rocm("gfx942", device="cpu")):
        return stored_weights.why_quantization_is_left(SimpleNamespace(model_config=model))


@pytest.mark.parametrize("field", ["num_experts", "num_local_experts", "n_routed_experts"])
def test_a_mixture_whose_experts_no_kernel_reads_is_left_to_vllm(field: str) -> None:
    assert "no kernel of ours reads experts in int8" in str(why_left(INT8 | {"ignore": ["lm_head"]}, **{field: 8}))


@pytest.mark.parametrize("fields", [{}, {"num_experts": 1}, {"num_experts": None}])
def test_a_model_without_experts_is_ours_where_a_kernel_reads_its_linears(fields: dict[str, Any]) -> None:
    assert why_left(INT8, **fields) is None


@pytest.mark.parametrize(
    ("model_type", "left_out"),
    [
        ("qwen3_moe", r"re:model\.layers\.3\.mlp\.experts\.\d+\.gate_proj"),
        ("mixtral", r"re:.*block_sparse_moe\.experts.*w1"),
        ("gpt_oss", "model.layers.3.mlp.experts.gate_up_proj"),
    ],
)
def test_experts_that_are_left_plain_need_no_kernel_of_their_own(model_type: str, left_out: str) -> None:
    fields = {"num_experts": 8, "model_type": model_type}
    assert why_left(INT8 | {"ignore": [left_out]}, **fields) is None
    assert "reads experts" in str(why_left(INT8 | {"ignore": ["model.layers.3.self_attn.q_proj"]}, **fields))


def test_experts_whose_kernel_rounds_activations_are_asked_about_with_them() -> None:
    assert why_left({"quant_method": "fp8", "activation_scheme": "dynamic"}, num_experts=8) is None
