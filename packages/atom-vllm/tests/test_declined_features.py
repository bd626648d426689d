"""Whatever our models do not have goes to vLLM's own class, with a reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_kernels.native import native_unavailable
from atom_models import supported_architectures
from atom_models.architectures.registry import has_sparse_attention, keeps_states
from atom_vllm.features import why_not_ours
from atom_vllm.pictures import ARCHITECTURES as SEEING
from quantized_checkpoints import PUBLISHED
from stub_vllm import stub_vllm


def config(architecture: str = "LlamaForCausalLM", **changes: Any) -> Any:
    values = {
        "model_config.runner_type": "generate", "model_config.convert_type": "none",
        "model_config.is_multimodal_model": False, "model_config.quantization": None, "model_config.use_mla": False,
        "model_config.hf_config": SimpleNamespace(architectures=[architecture]),
        "parallel_config.pipeline_parallel_size": 1, "parallel_config.enable_expert_parallel": False,
        "parallel_config.data_parallel_size": 1, "parallel_config.tensor_parallel_size": 1,
        "model_config.is_moe": "Moe" in architecture, "model_config.get_num_experts": lambda: 8,
        "cache_config.cache_dtype": "auto",
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
        ({"parallel_config__pipeline_parallel_size": 2}, "pipeline parallelism is asked for"),
        ({"model_config__runner_type": "pooling"}, "pooling is asked for"),
        ({"model_config__convert_type": "embed"}, "pooling is asked for"),
        ({"model_config__is_multimodal_model": True}, "inputs other than text are asked for"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "prefill context parallelism is asked for"),
        ({"model_config__enable_prompt_embeds": True}, "prompt embeddings are asked for"),
        ({"model_config__enable_sleep_mode": True}, "weights are put to sleep"),
        ({"cache_config__cache_dtype": "fp8_e5m2"}, "a cache of fp8_e5m2 is asked for"),
        ({"model_config__use_mla": True, "cache_config__cache_dtype": "fp8"}, "latents in fp8 are vLLM's own"),
    ],
)
def test_a_feature_that_we_lack_is_declined(changes: dict[str, Any], reason: str) -> None:
    assert why_not_ours(config(**changes)) == reason


def mixture(*, data: int = 1, tensor: int = 1, spread: bool = False, **changes: Any) -> Any:
    given = {f"parallel_config__{name}": value for name, value in changes.items()}
    return config(
        "Qwen3MoeForCausalLM", parallel_config__data_parallel_size=data, parallel_config__tensor_parallel_size=tensor,
        parallel_config__enable_expert_parallel=spread, **given,
    )  # fmt: skip


@pytest.mark.parametrize(
    "asked",
    [
        mixture(tensor=2, spread=True),
        mixture(data=2),
        mixture(data=2, tensor=4, spread=True, all2all_backend="allgather_reducescatter", use_ubatching=False),
        mixture(tensor=2, spread=True, all2all_backend="deepep_v2"),  # rows of one engine are exchanged by nothing
        mixture(tensor=16),  # cut experts
        config(parallel_config__data_parallel_size=16),
    ],
)
def test_experts_and_engines_that_vllm_spreads_are_ours(asked: Any) -> None:
    assert why_not_ours(asked) is None


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (mixture(tensor=2, spread=True, enable_eplb=True), "enable_eplb is asked for, and only experts of vLLM's own"),
        (
            mixture(tensor=2, spread=True, expert_placement_strategy="round_robin"),
            "an expert_placement_strategy of round_robin is asked for, and ranks of ours hold runs of experts",
        ),
        (mixture(data=2, use_ubatching=True), "steps in several parts (enable_dbo, ubatch_size) are asked for"),
        (mixture(data=2, all2all_backend="deepep_v2"), "an all2all_backend of deepep_v2 is asked for, and engines of"),
        (mixture(tensor=9, spread=True), "it has 8 experts, and each of 9 ranks would hold one whole"),
        (mixture(data=3, tensor=3), "it has 8 experts, and each of 9 ranks would hold one whole"),
    ],
)
def test_ways_to_spread_experts_that_ours_lack_are_vllms_own(asked: Any, reason: str) -> None:
    assert str(why_not_ours(asked)).startswith(reason)


def sharing_a_context(architecture: str, **changes: Any) -> Any:
    given = {f"parallel_config__{name}": value for name, value in changes.items()}
    has_latents = architecture.startswith("Deepseek")
    return config(
        architecture, parallel_config__decode_context_parallel_size=2, model_config__use_mla=has_latents, **given
    )


def test_ranks_that_share_the_context_of_latent_attention_are_ours() -> None:
    assert why_not_ours(sharing_a_context("DeepseekV3ForCausalLM", cp_kv_cache_interleave_size=1)) is None


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (sharing_a_context("LlamaForCausalLM"), "decode context parallelism is asked for, which is ours for latent"),
        (sharing_a_context("Qwen3NextForCausalLM"), "decode context parallelism is asked for, which is ours for"),
        (sharing_a_context("DeepseekV32ForCausalLM"), "DeepseekV32ForCausalLM has sparse attention"),
        (
            sharing_a_context("DeepseekV3ForCausalLM", cp_kv_cache_interleave_size=16),
            "a cp_kv_cache_interleave_size of 16 is asked for, and ranks of ours keep one token after the other",
        ),
        (
            sharing_a_context("DeepseekV3ForCausalLM", dcp_kv_cache_interleave_size=4),
            "a dcp_kv_cache_interleave_size of 4 is asked for, and ranks of ours keep one token after the other",
        ),
        (
            sharing_a_context("DeepseekV3ForCausalLM", dcp_comm_backend="a2a"),
            "a dcp_comm_backend of a2a is asked for, and ranks of ours gather and sum",
        ),
    ],
)
def test_contexts_that_ranks_of_ours_do_not_share_so_are_vllms_own(asked: Any, reason: str) -> None:
    assert str(why_not_ours(asked)).startswith(reason)


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "suffix"])
def test_models_are_ours_where_tokens_alone_are_guessed_by(method: str) -> None:
    # vLLM names the target as the draft model then.
    asked = config(speculative_config=SimpleNamespace(method=method))
    asked.speculative_config.draft_model_config = asked.model_config
    assert why_not_ours(asked) is None


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp", "deepseek_mtp", "dflash", "dspark"])
def test_a_head_that_wants_vllms_layers_is_named(method: str) -> None:
    reason = str(why_not_ours(config(speculative_config=SimpleNamespace(method=method))))
    assert reason.startswith(f"speculative decoding by {method} is asked for, whose layers take the embedding")


def test_a_way_to_speculate_that_nobody_has_tried_is_left_to_vllm() -> None:
    reason = why_not_ours(config(speculative_config=SimpleNamespace(method="medusa")))
    assert reason == "speculative decoding by medusa is asked for, which has not been tried with models of ours"


def test_a_whole_draft_model_is_vllms_own_and_its_target_is_ours() -> None:
    target, draft = config(), config()
    speculative = SimpleNamespace(method="draft_model", draft_model_config=draft.model_config)
    target.speculative_config = draft.speculative_config = speculative
    assert why_not_ours(target) is None
    assert str(why_not_ours(draft)).startswith("it drafts for another model")


def test_an_architecture_that_we_lack_is_declined() -> None:
    assert "PersimmonForCausalLM" in str(why_not_ours(config("PersimmonForCausalLM")))


def families_that_the_guide_leaves_to_vllm() -> dict[str, str]:
    """Architecture -> the reason in docs/vllm.md."""
    guide = (Path(__file__).parents[3] / "docs" / "vllm.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in guide.splitlines() if "ForC" in line and line.count("|") == 4]
    return {name: reason.strip() for names, _, reason in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.parametrize("name", families_that_the_guide_leaves_to_vllm())
def test_families_that_the_guide_leaves_to_vllm_are_left_for_that_reason(name: str) -> None:
    takes_more = name.endswith("ForConditionalGeneration")
    asked = config(
        name,
        model_config__use_mla="eek" in name or "Dsa" in name or "Kimi" in name,
        model_config__is_multimodal_model=takes_more,
    )
    reason = families_that_the_guide_leaves_to_vllm()[name]
    assert why_not_ours(asked) == re.sub("^it ", f"{name} ", reason)


def test_the_guide_names_every_family_that_is_left_to_vllm() -> None:
    left = [
        name
        for name in supported_architectures()
        if name == "KimiLinearForCausalLM"
        or has_sparse_attention(name)
        or (name.endswith("ForConditionalGeneration") and name not in SEEING)
    ]
    assert sorted(families_that_the_guide_leaves_to_vllm()) == sorted(left)


STATES = [name for name in supported_architectures() if keeps_states(name) and not name.startswith("Kimi")]


def keeping(architecture: str = "Qwen3NextForCausalLM", **changes: Any) -> Any:
    usual = {
        "cache_config__mamba_cache_mode": "none",
        "cache_config__mamba_cache_dtype": "auto",
        "cache_config__mamba_ssm_cache_dtype": "auto",
        "kv_transfer_config": None,
        "model_config__dtype": torch.bfloat16,
    }
    return config(architecture, **usual | changes)


@pytest.fixture
def in_stub_vllm() -> Iterator[Callable[[Any], str | None]]:
    """`why_not_ours` beside a stand-in for vLLM, of which states ask for what it has."""
    with stub_vllm():
        from atom_vllm.features import why_not_ours

        yield why_not_ours


@pytest.mark.parametrize("mode", ["none", "align"])
@pytest.mark.parametrize("name", [name for name in STATES if name.endswith("ForCausalLM")])
def test_states_of_requests_are_ours(in_stub_vllm: Any, name: str, mode: str) -> None:
    assert in_stub_vllm(keeping(name, cache_config__mamba_cache_mode=mode)) is None
    explicit = {"cache_config__mamba_cache_dtype": "bfloat16", "cache_config__mamba_ssm_cache_dtype": "float32"}
    assert in_stub_vllm(keeping(name, **explicit)) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"speculative_config": SimpleNamespace(method="ngram")},
            "speculative decoding by ngram is asked for, and ours keeps no states behind drafts there",
        ),
        ({"kv_transfer_config": object()}, "its caches are to be transferred, and states of ours are not"),
        (
            {"cache_config__mamba_cache_mode": "all"},
            "a mamba_cache_mode of all is asked for, and ours has none and align",
        ),
        (
            {"cache_config__mamba_cache_dtype": "float16"},
            "a mamba_cache_dtype of float16 is asked for, and ours is that of the model",
        ),
        (
            {"cache_config__mamba_ssm_cache_dtype": "bfloat16"},
            "a mamba_ssm_cache_dtype of bfloat16 is asked for, and states of ours are in float32",
        ),
    ],
)
def test_ways_to_keep_states_that_ours_lacks_are_vllms_own(in_stub_vllm: Any, changes: Any, reason: str) -> None:
    assert in_stub_vllm(keeping(**changes)) == reason


def test_states_are_vllms_own_where_our_kernels_are_switched_off_or_its_runner_cuts_pages(
    in_stub_vllm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.model_executor.layers.mamba.abstract import MambaBase  # pyright: ignore[reportMissingImports]

    with monkeypatch.context() as patch:
        patch.delattr(MambaBase, "bind_kv_cache")
        assert in_stub_vllm(keeping()) == "this vLLM has no layers that take states from pages"
    monkeypatch.setenv("ATOM_DISABLE_VLLM_PLUGIN_ATTENTION", "1")
    assert str(in_stub_vllm(keeping())).startswith("states are ours only with our kernels")


def seeing(architecture: str, **asked: Any) -> Any:
    usual = {
        "enable_mm_embeds": False,
        "video_pruning_rate": None,
        "mm_encoder_tp_mode": "weights",
        "mm_encoder_only": False,
    }
    return config(
        architecture,
        model_config__use_mla=architecture.startswith("Kimi"),
        model_config__is_multimodal_model=True,
        model_config__multimodal_config=SimpleNamespace(**usual | asked),
    )


@pytest.mark.parametrize("architecture", SEEING)
def test_models_whose_text_and_tower_are_ours_see(in_stub_vllm: Any, architecture: str) -> None:
    assert in_stub_vllm(seeing(architecture)) is None


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"enable_mm_embeds": True}, "pictures may be given as embeddings"),
        ({"video_pruning_rate": 0.5}, "tokens of videos are to be left out"),
        ({"mm_encoder_tp_mode": "data"}, "ranks are to share pictures out"),
        ({"mm_encoder_only": True}, "the tower is asked for by itself"),
    ],
)
def test_ways_to_give_pictures_that_ours_lacks_are_vllms_own(asked: dict[str, Any], reason: str) -> None:
    assert why_not_ours(seeing("Qwen3VLForConditionalGeneration", **asked)) == reason


def test_latent_attention_is_ours_unless_our_kernels_are_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config("DeepseekV3ForCausalLM", model_config__use_mla=True)
    assert why_not_ours(asked) is None
    monkeypatch.setenv("ATOM_DISABLE_VLLM_PLUGIN_ATTENTION", "1")
    assert "ATOM_DISABLE_VLLM_PLUGIN_ATTENTION is set" in str(why_not_ours(asked))


def quantized(method: str, published: Any, **changes: Any) -> Any:
    hf_config = SimpleNamespace(architectures=["LlamaForCausalLM"], quantization_config=published)
    given = {"model_config__quantization": method, "model_config__hf_config": hf_config}
    return config(**given, model_config__dtype=torch.bfloat16, **changes)


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name not in ("gptq sorted", "nf4", "nf4 nested")])
@pytest.mark.skipif(bool(native_unavailable("linear_quantized")), reason="no C kernels here")
def test_a_quantized_checkpoint_that_our_kernels_read_is_ours(name: str) -> None:
    published = dict(PUBLISHED[name].config)
    assert why_not_ours(quantized(published["quant_method"], published)) is None


@pytest.mark.skipif(bool(native_unavailable("moe")), reason="no C kernels here")
def test_a_method_that_vllm_renames_in_the_config_is_known_by_its_published_name() -> None:
    assert why_not_ours(quantized("gpt_oss_mxfp4", {"quant_method": "gpt_oss_mxfp4"})) is None


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (quantized("fp8", None), "the quantization fp8 is asked for"),
        (
            quantized("aqlm", {"quant_method": "aqlm"}),
            "the checkpoint is quantized as aqlm, which this version does not",
        ),
        (quantized("awq", {"quant_method": "awq", "bits": 3}), "quantized as awq with bits 3, which this version does"),
        (quantized("bitsandbytes", {"quant_method": "bitsandbytes"}), "vLLM has a loader of its own for bitsandbytes"),
        (
            quantized("fp8", dict(PUBLISHED["fp8 tiles"].config), model_config__quantization_config=object()),
            "a quantization beside that of the checkpoint (fp8) is asked for",
        ),
        (
            quantized("gptq", dict(PUBLISHED["gptq sorted"].config)),
            "no kernel of ours reads gptq int4 per 32 with sorted inputs here",
        ),
    ],
)
def test_quantization_that_ours_does_not_read_is_left_to_vllm(asked: Any, reason: str) -> None:
    assert reason in str(why_not_ours(asked))


@pytest.mark.parametrize("cache_dtype", ["auto", "bfloat16", "fp8", "fp8_e4m3"])
def test_models_are_ours_over_caches_that_either_attention_can_read(cache_dtype: str) -> None:
    assert why_not_ours(config(cache_config__cache_dtype=cache_dtype)) is None
