"""Greedy tokens inside of vLLM are vLLM's own, whatever part of it is ours and however it batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from atom_core import LLMEngine, SamplingParams
from quantized_checkpoints import PUBLISHED, write_quantized
from tests.with_vllm.conftest import ATTENTION_OURS, IN_PROCESS, STOCK
from tests.with_vllm.generate import prompts
from tiny_architectures import make_tiny

MODELS_OURS = "Register model LlamaForCausalLM to vLLM with atom_vllm.models.model_wrapper:ATOMForCausalLM"

ONE_CORE_EACH = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}

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


def test_chunks_preemption_and_compiling_change_nothing_in_the_callers_process(
    run_jobs, smollm2_folder: Path, stock
) -> None:
    chunks = {"max_num_batched_tokens": 64, "enable_chunked_prefill": True}
    tight = {"num_gpu_blocks_override": 24, "block_size": 32, "enable_prefix_caching": False}
    jobs = [{"model": smollm2_folder, "llm": llm} for llm in ({}, chunks, tight, {"enforce_eager": False})]
    # The last one is traced, as it is on a GPU; "eager" stands for inductor, which takes minutes.
    outcomes = run_jobs(jobs, IN_PROCESS | {"ATOM_VLLM_COMPILE": "1", "VLLM_CPU_CI_ENV": "1"})
    assert [outcome.tokens for outcome in outcomes] == [[stock]] * 4, [outcome.error for outcome in outcomes]
    assert all(MODELS_OURS in outcome.log for outcome in outcomes)
    assert "Detected eager backend" in outcomes[3].log  # what vLLM says as it compiles


@pytest.mark.parametrize("family", ["llama-3.1", "qwen3_moe", "deepseek_v3"])
def test_two_tensor_parallel_ranks_change_nothing(generate, run_jobs, tiny, family: str) -> None:
    """Dense, with experts, and with latents, which stock vLLM does not run on every CPU: one rank of ours does."""
    job = {"model": tiny(family), "llm": {"max_model_len": 256}, "num_tokens": 32}
    [alone] = run_jobs([job], IN_PROCESS | (STOCK if family == "llama-3.1" else {}))
    assert alone.error is None, alone.log[-4000:]
    tokens, log = generate(job["model"], ONE_CORE_EACH, llm=job["llm"] | {"tensor_parallel_size": 2}, num_tokens=32)
    assert tokens == alone.tokens
    assert "to vLLM with atom_vllm.models.model_wrapper:ATOM" in log
    assert ATTENTION_OURS in log or family == "deepseek_v3"  # latents bring their own, and vLLM's platform chooses none


@pytest.mark.parametrize(("family", "layout"), [("llama-3.1", "int4 packed"), ("qwen3_moe", "fp8 tiles")])
def test_two_tensor_parallel_ranks_share_quantized_weights(generate, run_jobs, tmp_path, family, layout) -> None:
    """In bfloat16, in which sums over ranks round: first tokens are the same, and likely to the same degree."""
    sizes = {"hidden_size": 256, "intermediate_size": 512} if family == "llama-3.1" else {"moe_intermediate_size": 256}
    folder, _ = write_quantized(tmp_path, make_tiny(family, tmp_path / "plain", **sizes), PUBLISHED[layout])
    job = {"llm": {"max_model_len": 256, "dtype": "bfloat16"}, "num_tokens": 1, "logprobs": True}
    two = job | {"llm": job["llm"] | {"tensor_parallel_size": 2}}
    [alone], [shared] = (
        run_jobs([{"model": folder} | job], IN_PROCESS),
        run_jobs([{"model": folder} | two], ONE_CORE_EACH),
    )
    assert (alone.error, shared.error) == (None, None), shared.log[-4000:]
    assert shared.tokens == alone.tokens
    assert "to vLLM with atom_vllm.models.model_wrapper:ATOM" in shared.log
    for ours, expected in zip(shared.logprobs[0], alone.logprobs[0], strict=True):
        assert ours == pytest.approx(expected, abs=0.05)
