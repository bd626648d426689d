"""On a GPU, with graphs and with both of vLLM's model runners: tiny models generate in float32 what stock vLLM does.

    pytest -m gpu tests/with_vllm --vllm-path FOLDER

FOLDER has vLLM's packages (what PYTHONPATH would be); Python is the one that runs the tests.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.with_vllm.conftest import IN_PROCESS, STOCK

FAMILIES = ("llama-3.1", "qwen3", "gemma3", "qwen3_moe", "gpt_oss")
# So little memory, and none of it measured, that several engines may start at a time.
SETTINGS = {
    "max_model_len": 256, "gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 28,
    "attention_backend": "TRITON_ATTN",
}  # fmt: skip
OURS = {name: value for name, value in SETTINGS.items() if name != "attention_backend"}
RUNNERS = {"first runner": {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "second runner": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}
PARTS = {
    "both": {},
    "models": {"ATOM_DISABLE_VLLM_PLUGIN_ATTENTION": "1"},
    "attention": {"ATOM_VLLM_ARCHITECTURES": ""},
}

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def stock(run_jobs, tiny) -> dict[str, Any]:
    jobs = [{"model": tiny(family), "llm": SETTINGS | {"enforce_eager": True}} for family in FAMILIES]
    return dict(zip(FAMILIES, run_jobs(jobs, IN_PROCESS | STOCK), strict=True))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_graphs_and_either_runner_change_nothing(run_jobs, tiny, stock, runner: str, part: str) -> None:
    asked = SETTINGS if part == "models" else OURS
    jobs = [{"model": tiny(family), "llm": asked | {"enforce_eager": False}} for family in FAMILIES]
    outcomes = run_jobs(jobs, IN_PROCESS | RUNNERS[runner] | PARTS[part])
    for family, outcome in zip(FAMILIES, outcomes, strict=True):
        assert outcome.error is None, (family, outcome.log[-4000:])
        assert outcome.tokens == stock[family].tokens, family
        assert ("Use atom attention backend" in outcome.log) is (part != "models"), family
        assert ("to vLLM with atom_vllm.model_wrapper:ATOM" in outcome.log) is (part != "attention"), family


def test_latent_attention_generates_what_vllms_does(run_jobs, latent) -> None:
    """vLLM's own kernels for it want latents of published sizes."""
    [theirs] = run_jobs(
        [{"model": latent, "llm": SETTINGS | {"attention_backend": "TRITON_MLA", "enforce_eager": True}}],
        IN_PROCESS | STOCK,
    )
    [ours] = run_jobs([{"model": latent, "llm": OURS | {"enforce_eager": False}}], IN_PROCESS)
    assert ours.error is None, ours.log[-4000:]
    assert ours.tokens == theirs.tokens
