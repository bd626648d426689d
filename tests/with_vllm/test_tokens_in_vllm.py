"""Greedy tokens inside of vLLM are vLLM's own, whatever part of it is ours and however it batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from atom_core import LLMEngine, SamplingParams
from tests.with_vllm.generate import prompts
from tiny_architectures import make_tiny

MODELS_OURS = "Register model LlamaForCausalLM to vLLM with atom_vllm.model_wrapper:ATOMForCausalLM"
ATTENTION_OURS = "Use atom attention backend"

pytestmark = pytest.mark.slow


def test_our_own_engine_generates_what_vllm_does(smollm2_folder: Path, stock) -> None:
    with LLMEngine(str(smollm2_folder), dtype="float32", max_model_len=512, skip_tokenizer_init=True) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
        outputs = engine.generate(prompts(300), params, use_tqdm=False)
    assert [output["token_ids"] for output in outputs] == stock


def test_models_and_attention_are_ours_and_a_warm_prefix_cache_changes_nothing(generate, smollm2_folder, stock) -> None:
    rounds, log = generate(smollm2_folder, rounds=2, llm={"enable_prefix_caching": True})
    assert rounds == [stock, stock]
    assert MODELS_OURS in log
    assert ATTENTION_OURS in log


def test_only_the_attention_is_ours(generate, smollm2_folder, stock) -> None:
    [tokens], log = generate(smollm2_folder, {"ATOM_VLLM_ARCHITECTURES": ""})
    assert tokens == stock
    assert MODELS_OURS not in log
    assert ATTENTION_OURS in log


def test_only_the_models_are_ours(generate, smollm2_folder, stock) -> None:
    [tokens], log = generate(smollm2_folder, {"ATOM_DISABLE_VLLM_PLUGIN_ATTENTION": "1"})
    assert tokens == stock
    assert MODELS_OURS in log
    assert ATTENTION_OURS not in log


def test_chunks_of_prompts_change_nothing(generate, smollm2_folder, stock) -> None:
    settings = {"max_num_batched_tokens": 64, "enable_chunked_prefill": True}
    assert generate(smollm2_folder, llm=settings)[0] == [stock]


def test_preempted_requests_change_nothing(generate, smollm2_folder, stock) -> None:
    settings = {"num_gpu_blocks_override": 24, "block_size": 32, "enable_prefix_caching": False}
    assert generate(smollm2_folder, llm=settings)[0] == [stock]


def test_the_engine_in_the_callers_process_changes_nothing(generate, smollm2_folder, stock) -> None:
    assert generate(smollm2_folder, {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})[0] == [stock]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``tiny(family)``: a random model with the smallest heads that vLLM's own attention takes on a CPU."""

    def make(family: str) -> Path:
        # Qwen2's heads share the hidden size; the others name the size of a head.
        size = {"hidden_size": 192} if family == "qwen2" else {"head_dim": 32}
        return make_tiny(family, tmp_path_factory.mktemp("tiny") / family, **size)

    return make


def test_two_tensor_parallel_ranks_change_nothing(generate, tiny) -> None:
    folder = tiny("llama-3.1")
    stock, _ = generate(folder, {"ATOM_DISABLE_VLLM_PLUGIN": "1"})
    one_core_each = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    tokens, log = generate(folder, one_core_each, llm={"tensor_parallel_size": 2})
    assert tokens == stock
    assert MODELS_OURS in log


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "qwen3_moe", "mixtral", "glm4_moe", "gemma3"])
def test_tiny_models_of_every_family_generate_what_vllm_does(generate, tiny, family: str) -> None:
    folder = tiny(family)
    # Every tiny model is for 256 tokens at least.
    settings = {"llm": {"max_model_len": 256}, "num_tokens": 48}
    stock, _ = generate(folder, {"ATOM_DISABLE_VLLM_PLUGIN": "1"}, **settings)
    tokens, log = generate(folder, **settings)
    assert tokens == stock
    assert "to vLLM with atom_vllm.model_wrapper:ATOM" in log


def test_gpt_oss_generates_what_our_own_engine_does(generate, tiny) -> None:
    folder = tiny("gpt_oss")  # vLLM's own cannot run in float32 on a CPU
    [tokens], log = generate(folder, llm={"max_model_len": 256}, num_tokens=48)
    with LLMEngine(str(folder), dtype="float32", skip_tokenizer_init=True) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
        outputs = engine.generate(prompts(300), params, use_tqdm=False)
    assert tokens == [output["token_ids"] for output in outputs]
    assert "to vLLM with atom_vllm.model_wrapper:ATOMMoEForCausalLM" in log


def test_lora_is_left_to_vllm(generate, tiny) -> None:
    tokens, log = generate(tiny("llama-3.1"), llm={"enable_lora": True}, num_tokens=8)
    assert len(tokens[0]) == 16
    assert "LlamaForCausalLM is vLLM's own, because LoRA adapters are asked for" in log
