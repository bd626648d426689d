"""On a GPU, with graphs and with both of vLLM's model runners: tiny models generate in float32 what stock vLLM does.

    pytest -m gpu tests/with_vllm --vllm-path FOLDER

FOLDER has vLLM's packages (what PYTHONPATH would be); Python is the one that runs the tests.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

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


class SixteenBits(NamedTuple):
    """What stock vLLM has kernels for in 16 bits only; `tolerance` is for the likeliest token's log probability."""

    llm: dict[str, Any]
    their_backend: str
    tolerance: float


SIXTEEN_BITS = {
    "latents": SixteenBits({}, "TRITON_MLA", 0.05),
    # vLLM rounds queries to float8 as well.
    "cache in fp8": SixteenBits({"kv_cache_dtype": "fp8"}, "TRITON_ATTN", 0.25),
}

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
def sixteen_bits(run_jobs, tiny, latent) -> dict[str, tuple[Outcome, Outcome]]:
    """Stock vLLM's and ours, by case."""

    def generated(case: str, llm: dict[str, Any], environment: dict[str, str]) -> Outcome:
        model = latent if case == "latents" else tiny("llama-3.1")
        settings = OURS | SIXTEEN_BITS[case].llm | llm | {"dtype": "bfloat16"}
        [outcome] = run_jobs([{"model": model, "llm": settings, "num_tokens": 32, "logprobs": True}], environment)
        return outcome

    tiny("llama-3.1")  # which several at a time would make twice
    with ThreadPoolExecutor() as pool:
        made = {}
        for case, asked in SIXTEEN_BITS.items():
            theirs = {"attention_backend": asked.their_backend, "enforce_eager": True}
            made[case] = (
                pool.submit(generated, case, theirs, IN_PROCESS | STOCK), pool.submit(generated, case, {}, IN_PROCESS)
            )  # fmt: skip
        return {case: (stock.result(), ours.result()) for case, (stock, ours) in made.items()}


@pytest.mark.parametrize("case", SIXTEEN_BITS)
def test_kernels_of_sixteen_bits_generate_what_vllms_do(sixteen_bits, case: str) -> None:
    """Up to where two tokens are as likely as each other; there they may part."""
    theirs, ours = sixteen_bits[case]
    assert theirs.error is None, theirs.log[-4000:]
    assert ours.error is None, ours.log[-4000:]
    assert "to vLLM with atom_vllm.model_wrapper:ATOM" in ours.log
    assert (ATTENTION_OURS in ours.log) is (case != "latents")  # whose layer comes with the model
    apart = []
    for own, stock in zip(steps_of(ours), steps_of(theirs), strict=True):
        for (token, logprob), (their_token, their_logprob) in zip(own, stock, strict=True):
            apart.append(abs(logprob - their_logprob))
            if token != their_token:
                break
    print(f"{case}: {len(apart)} tokens, log probabilities at most {max(apart):.4f} apart")
    assert max(apart) < SIXTEEN_BITS[case].tolerance
    assert len(apart) > 150  # of 512


def steps_of(outcome: Outcome) -> list[list[tuple[int, float]]]:
    """Tokens with their log probabilities, by prompt."""
    if outcome.tokens is None or outcome.logprobs is None:
        raise ValueError("nothing was generated")
    pairs = zip(outcome.tokens[0], outcome.logprobs[0], strict=True)
    return [list(zip(tokens, logprobs, strict=True)) for tokens, logprobs in pairs]
