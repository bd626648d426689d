"""Whatever our models do not have goes to vLLM's own class, with a reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from atom_vllm.features import why_not_ours


def config(architecture: str = "LlamaForCausalLM", **changes: Any) -> Any:
    values = {
        "model_config.runner_type": "generate", "model_config.convert_type": "none",
        "model_config.is_multimodal_model": False, "model_config.quantization": None, "model_config.use_mla": False,
        "model_config.hf_config": SimpleNamespace(architectures=[architecture]),
        "parallel_config.pipeline_parallel_size": 1, "parallel_config.enable_expert_parallel": False,
        "parallel_config.data_parallel_size": 1, "cache_config.cache_dtype": "auto",
    }  # fmt: skip
    sections: dict[str, Any] = {"lora_config": None, "speculative_config": None}
    for name, value in (values | {key.replace("__", "."): value for key, value in changes.items()}).items():
        section, _, field = name.partition(".")
        if field:
            setattr(sections.setdefault(section, SimpleNamespace()), field, value)
        else:
            sections[section] = value
    return SimpleNamespace(**sections)


def test_a_plain_model_is_ours() -> None:
    assert why_not_ours(config()) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"lora_config": object()}, "LoRA adapters are asked for"),
        ({"speculative_config": object()}, "speculative decoding is asked for"),
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline parallelism is asked for"),
        ({"parallel_config__enable_expert_parallel": True}, "expert parallelism is asked for"),
        ({"parallel_config__data_parallel_size": 2}, "data parallelism is asked for"),
        ({"model_config__runner_type": "pooling"}, "pooling is asked for"),
        ({"model_config__convert_type": "embed"}, "pooling is asked for"),
        ({"model_config__is_multimodal_model": True}, "inputs other than text are asked for"),
        ({"model_config__quantization": "awq"}, "the quantization awq is asked for"),
        ({"parallel_config__decode_context_parallel_size": 2}, "context parallelism is asked for"),
        ({"model_config__enable_prompt_embeds": True}, "prompt embeddings are asked for"),
        ({"model_config__enable_sleep_mode": True}, "weights are put to sleep"),
        ({"cache_config__cache_dtype": "fp8_e5m2"}, "a cache of fp8_e5m2 is asked for"),
        ({"model_config__use_mla": True, "cache_config__cache_dtype": "fp8"}, "latents in fp8 are vLLM's own"),
    ],
)
def test_a_feature_that_we_lack_is_declined(changes: dict[str, Any], reason: str) -> None:
    assert why_not_ours(config(**changes)) == reason


def test_an_architecture_that_we_lack_is_declined() -> None:
    assert "PersimmonForCausalLM" in str(why_not_ours(config("PersimmonForCausalLM")))


def test_latent_attention_is_ours_unless_our_kernels_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config("DeepseekV3ForCausalLM", model_config__use_mla=True)
    assert why_not_ours(asked) is None
    monkeypatch.setenv("ATOM_DISABLE_VLLM_PLUGIN_ATTENTION", "1")
    assert "ATOM_DISABLE_VLLM_PLUGIN_ATTENTION is set" in str(why_not_ours(asked))


@pytest.mark.parametrize("cache_dtype", ["auto", "bfloat16", "fp8", "fp8_e4m3"])
def test_models_are_ours_over_caches_that_either_attention_can_read(cache_dtype: str) -> None:
    assert why_not_ours(config(cache_config__cache_dtype=cache_dtype)) is None
