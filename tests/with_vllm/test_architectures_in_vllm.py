"""Tiny random models of every family generate inside vLLM what stock vLLM does, or our own engine where it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from atom_core import LLMEngine, SamplingParams
from tests.with_vllm.conftest import ATTENTION_OURS, IN_PROCESS, STOCK, Outcome
from tests.with_vllm.generate import prompts

DENSE = ("llama-3.1", "mistral", "qwen2", "qwen3", "gemma3", "nemotron")
EXPERTS = ("qwen3_moe", "mixtral", "glm4_moe", "gpt_oss", "minimax_m2")
LATENT = ("deepseek_v2", "deepseek_v2-lite", "deepseek_v3", "glm4_moe_lite")
FAMILIES = DENSE + EXPERTS + LATENT
# What the log has to say where stock vLLM cannot run a family in float32 on a CPU, in one version or another.
BEYOND_STOCK = dict.fromkeys(LATENT, ("MLA is not supported on CPU", "is not supported by MLA")) | {
    "mixtral": ("No Unquantized MoE backend supports",),
    "gpt_oss": ("No Unquantized MoE backend supports", "expected scalar type BFloat16 but found Float"),
    "minimax_m2": ('scoring_func == "softmax"',),
}
NUM_TOKENS = 32

pytestmark = pytest.mark.slow


def jobs(tiny: Any) -> list[dict[str, Any]]:
    # Every tiny model is for 256 tokens at least.
    return [{"model": tiny(family), "llm": {"max_model_len": 256}, "num_tokens": NUM_TOKENS} for family in FAMILIES]


@pytest.fixture(scope="module")
def stock(run_jobs, tiny) -> dict[str, Outcome]:
    return dict(zip(FAMILIES, run_jobs(jobs(tiny), IN_PROCESS | STOCK), strict=True))


@pytest.fixture(scope="module")
def ours(run_jobs, tiny) -> dict[str, Outcome]:
    return dict(zip(FAMILIES, run_jobs(jobs(tiny), IN_PROCESS), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_generates_what_stock_vllm_or_our_own_engine_does(tiny, stock, ours, family: str) -> None:
    assert ours[family].error is None, ours[family].log[-4000:]
    assert "to vLLM with atom_vllm.models.model_wrapper:ATOM" in ours[family].log
    theirs = stock[family]
    if theirs.error is None:
        assert ours[family].tokens == theirs.tokens
    else:
        assert any(text in theirs.log for text in BEYOND_STOCK[family]), theirs.log[-4000:]
        assert ours[family].tokens == [own_tokens(tiny(family))]


def test_our_attention_is_chosen(ours) -> None:
    assert any(ATTENTION_OURS in outcome.log for outcome in ours.values())


def test_latents_of_published_sizes_generate_what_stock_vllm_does(run_jobs, latent, vllm_release) -> None:
    if vllm_release < (0, 29):
        pytest.skip("this vLLM has no latent attention for CPUs")
    job = {"model": latent, "llm": {"max_model_len": 256}, "num_tokens": NUM_TOKENS}
    [theirs], [ours] = run_jobs([job], IN_PROCESS | STOCK), run_jobs([job], IN_PROCESS)
    assert theirs.error is None, theirs.log[-4000:]
    assert ours.tokens == theirs.tokens


def test_qwen3_next_generates_what_our_own_engine_does(run_jobs, tiny) -> None:
    """Stock vLLM has delta nets for CPUs in bfloat16 alone. Qwen3.5 is tested with pictures."""
    folder = tiny("qwen3_next")
    job = {"model": folder, "llm": {"max_model_len": 256}, "num_tokens": NUM_TOKENS}
    [ours] = run_jobs([job], IN_PROCESS)
    assert ours.error is None, ours.log[-4000:]
    assert "to vLLM with atom_vllm.models.model_wrapper:ATOM" in ours.log
    assert ours.tokens == [own_tokens(folder)]


def test_chunks_preemption_tracing_and_states_behind_prefixes_change_nothing(run_jobs, tiny) -> None:
    folder, usual = tiny("qwen3_next"), {"max_model_len": 256, "enable_prefix_caching": False}
    chunks = {"max_num_batched_tokens": 64, "enable_chunked_prefill": True}
    changes = [chunks, {"num_gpu_blocks_override": 14}, {"enforce_eager": False}]
    jobs = [{"model": folder, "llm": usual | change, "num_tokens": NUM_TOKENS} for change in changes]
    prefixes = usual | {"enable_prefix_caching": True, "block_size": 32}
    jobs.append({"model": folder, "llm": prefixes, "num_tokens": NUM_TOKENS, "rounds": 2})
    outcomes = run_jobs(jobs, IN_PROCESS | {"ATOM_VLLM_COMPILE": "1", "VLLM_CPU_CI_ENV": "1"})
    expected = own_tokens(folder)
    for outcome in outcomes:
        assert outcome.error is None, outcome.log[-4000:]
        assert outcome.tokens in ([expected], [expected] * 2)
        assert "to vLLM with atom_vllm.models.model_wrapper:ATOMMoEForCausalLM" in outcome.log
    assert max(outcomes[-1].cached[1]) > 64


def own_tokens(folder: Any) -> list[list[int]]:
    with LLMEngine(str(folder), dtype="float32", skip_tokenizer_init=True) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
        return [output["token_ids"] for output in engine.generate(prompts(300), params, use_tqdm=False)]
