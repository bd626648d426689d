"""On a GPU, with graphs and with both of vLLM's model runners: tiny models generate in float32 what stock vLLM does.

    pytest -m gpu tests/with_vllm --vllm-path FOLDER

FOLDER has vLLM's packages (what PYTHONPATH would be); Python is the one that runs the tests.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.with_vllm.conftest import ATTENTION_OURS, IN_PROCESS, STOCK, Outcome

FAMILIES = ("llama-3.1", "qwen3", "gemma3", "qwen3_moe", "gpt_oss")
# So little memory, and none of it measured, that several engines may start at a time.
OURS = {
    "max_model_len": 256, "gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 28, "enforce_eager": False,
}  # fmt: skip
THEIRS = OURS | {"attention_backend": "TRITON_ATTN"}
# Triton would multiply in TF32, of which tokens tell nothing.
EXACT = IN_PROCESS | {"TRITON_F32_DEFAULT": "ieee"}
RUNNERS = {"first runner": {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "second runner": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}
PARTS = {
    "both": {},
    "models": {"ATOM_DISABLE_VLLM_PLUGIN_ATTENTION": "1"},
    "attention": {"ATOM_VLLM_ARCHITECTURES": ""},
}
# In bfloat16 both kernels round; so much may the log probability of the likeliest token be apart.
BFLOAT16_TOLERANCE = 0.05

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def outcomes(run_jobs, tiny) -> dict[Any, dict[str, Outcome]]:
    """By runner and part, and of stock vLLM by itself: all engines start side by side, which is most of the time."""
    folders = {family: tiny(family) for family in FAMILIES}

    def generated(llm: dict[str, Any], environment: dict[str, str]) -> dict[str, Outcome]:
        jobs = [{"model": folder, "llm": llm} for folder in folders.values()]
        return dict(zip(FAMILIES, run_jobs(jobs, EXACT | environment), strict=True))

    with ThreadPoolExecutor() as pool:
        made: dict[Any, Any] = {"stock": pool.submit(generated, THEIRS | {"enforce_eager": True}, STOCK)}
        for runner, chosen in RUNNERS.items():
            for part, switches in PARTS.items():
                llm = THEIRS if part == "models" else OURS
                made[runner, part] = pool.submit(generated, llm, chosen | switches)
        return {key: future.result() for key, future in made.items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("runner", RUNNERS)
def test_graphs_and_either_runner_change_nothing(outcomes, runner: str, part: str, family: str) -> None:
    stock, ours = outcomes["stock"][family], outcomes[runner, part][family]
    log_of_all = "".join(outcome.log for outcome in outcomes[runner, part].values())
    assert stock.error is None, stock.log[-4000:]
    assert ours.error is None, ours.log[-4000:]
    assert ours.tokens == stock.tokens
    assert (ATTENTION_OURS in log_of_all) is (part != "models")
    assert ("to vLLM with atom_vllm.model_wrapper:ATOM" in ours.log) is (part != "attention")


@pytest.fixture(scope="module")
def latent_outcomes(run_jobs, latent) -> tuple[Outcome, Outcome]:
    """Stock vLLM's and ours; its own kernels for latents want 16 bits and published sizes."""
    job = {"model": latent, "num_tokens": 32, "logprobs": True}
    llm = OURS | {"dtype": "bfloat16"}
    theirs = job | {"llm": llm | {"attention_backend": "TRITON_MLA", "enforce_eager": True}}
    with ThreadPoolExecutor() as pool:
        sides = pool.submit(run_jobs, [theirs], IN_PROCESS | STOCK), pool.submit(run_jobs, [job | {"llm": llm}], EXACT)
        return sides[0].result()[0], sides[1].result()[0]


def test_latent_attention_generates_what_vllms_does(latent_outcomes: tuple[Outcome, Outcome]) -> None:
    """Up to where two tokens are as likely as each other; there they may part."""
    theirs, ours = latent_outcomes
    assert theirs.error is None, theirs.log[-4000:]
    assert ours.error is None, ours.log[-4000:]
    assert "DeepseekV3ForCausalLM to vLLM with atom_vllm.model_wrapper:ATOMMoEForCausalLM" in ours.log
    compared = 0
    for own, stock in zip(steps_of(ours), steps_of(theirs), strict=True):
        for (token, logprob), (their_token, their_logprob) in zip(own, stock, strict=True):
            compared += 1
            assert abs(logprob - their_logprob) < BFLOAT16_TOLERANCE
            if token != their_token:
                break
    assert compared > 200  # of 512


def steps_of(outcome: Outcome) -> list[list[tuple[int, float]]]:
    """Tokens with their log probabilities, by prompt."""
    if outcome.tokens is None or outcome.logprobs is None:
        raise ValueError("nothing was generated")
    pairs = zip(outcome.tokens[0], outcome.logprobs[0], strict=True)
    return [list(zip(tokens, logprobs, strict=True)) for tokens, logprobs in pairs]
