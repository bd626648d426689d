"""The headers of a checkpoint's tensors inside vLLM: from the folder, or as vLLM knows them from the hub."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from atom_models import CheckpointError
from atom_models.quantization import Header
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
