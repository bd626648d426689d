"""On a GPU, with graphs and with both of vLLM's model runners: tiny models generate in float32 what stock vLLM does.

    pytest -m gpu tests/with_vllm --vllm-path FOLDER

FOLDER has vLLM's packages (what PYTHONPATH would be); Python is the one that runs the tests.
"""

from __future__ import annotations

from collections import ChainMap
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from tests.with_vllm.conftest import ATTENTION_OURS, IN_PROCESS, STOCK, Outcome

FAMILIES = ("llama-3.1", "qwen3", "gemma3", "qwen3_moe", "gpt_oss")
# What stock vLLM has kernels for in 16 bits only -> of which family, settings, stock vLLM's attention, and by how much
# the log probability of the likeliest token may differ. Over a cache in fp8 vLLM rounds queries to it as well.
SIXTEEN_BITS: dict[str, tuple[str, dict[str, Any], str, float]] = {
    "latents": ("latent", {}, "TRITON_MLA", 0.1),
    "cache in fp8": ("llama-3.1", {"kv_cache_dtype": "fp8"}, "TRITON_ATTN", 0.25),
}
# So little memory, and none of it measured, that several engines may start at a time.
SMALL = {
    "max_model_len": 256, "gpu_memory_utilization": 0.05, "kv_cache_memory_bytes": 1 << 28, "enforce_eager": False,
    "compilation_config": {"cudagraph_capture_sizes": [1, 4, 16]},
}  # fmt: skip
# Triton would multiply in TF32, of which tokens tell nothing.
EXACT = IN_PROCESS | {"TRITON_F32_DEFAULT": "ieee", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
RUNNERS = {"first runner": {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "second runner": {"VLLM_USE_V2_MODEL_RUNNER": "1"}}
SOME = ("qwen3", "gpt_oss")
PARTS = {
    "both": ({}, FAMILIES),
    "models": ({"ATOM_DISABLE_VLLM_PLUGIN_ATTENTION": "1"}, SOME),
    "attention": ({"ATOM_VLLM_ARCHITECTURES": ""}, SOME),
}

pytestmark = pytest.mark.gpu


class Process(NamedTuple):
    """Engines that start one after the other."""

    environment: dict[str, str]
    families: tuple[str, ...]
    attention: str | None = None
    with_sixteen_bits: bool = False
    enforce_eager: bool = False


def processes() -> dict[str, list[Process]]:
    """Stock vLLM in two, and ours by runner and part.

    vLLM imports a class in a process of its own to inspect it, once for all that follow: the second runner begins with
    the last, so that each inspects others.
    """
    halves = FAMILIES[:3], FAMILIES[3:]
    made = {"stock": [Process(STOCK, half, "TRITON_ATTN", half is halves[1], enforce_eager=True) for half in halves]}
    for runner, order in zip(RUNNERS, (1, -1), strict=True):
        for part, (switches, families) in PARTS.items():
            attention = "TRITON_ATTN" if part == "models" else None
            process = Process(RUNNERS[runner] | switches, families[::order], attention, part == "both")
            made[f"{runner}, {part}"] = [process]
    return made


@pytest.fixture(scope="module")
def outcomes(run_jobs, tiny, latent) -> dict[str, dict[str, Outcome]]:
    """The result of every process, by case; they run side by side, since starting takes most of the time."""
    folders = {family: tiny(family) for family in FAMILIES} | {"latent": latent}

    def generate(process: Process) -> dict[str, Outcome]:
        llm = SMALL | {"enforce_eager": process.enforce_eager}
        backend = {"attention_backend": process.attention} if process.attention else {}
        jobs = {family: {"model": folders[family], "llm": llm | backend} for family in process.families}
        for case, (family, settings, theirs, _) in SIXTEEN_BITS.items() if process.with_sixteen_bits else ():
            backend = {"attention_backend": theirs} if process.attention else {}
            asked = llm | settings | backend | {"dtype": "bfloat16"}
            jobs[case] = {"model": folders[family], "llm": asked, "num_tokens": 32, "logprobs": True}
        return dict(zip(jobs, run_jobs(list(jobs.values()), EXACT | process.environment), strict=True))

    with ThreadPoolExecutor(16) as pool:
        futures = {name: [pool.submit(generate, process) for process in parts] for name, parts in processes().items()}
        return {name: dict(ChainMap(*(part.result() for part in parts))) for name, parts in futures.items()}


PAIRS = [(runner, part, family) for runner in RUNNERS for part, (_, families) in PARTS.items() for family in families]


@pytest.mark.parametrize(("runner", "part", "family"), PAIRS)
def test_graphs_and_either_runner_change_nothing(outcomes, runner: str, part: str, family: str) -> None:
    stock, process = outcomes["stock"][family], outcomes[f"{runner}, {part}"]
    ours = process[family]
    assert stock.error is None, stock.log[-4000:]
    assert ours.error is None, ours.log[-4000:]
    assert ours.tokens == stock.tokens
    assert any(ATTENTION_OURS in outcome.log for outcome in process.values()) is (part != "models")
    assert ("to vLLM with atom_vllm.models.model_wrapper:ATOM" in ours.log) is (part != "attention")


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("case", SIXTEEN_BITS)
def test_kernels_of_sixteen_bits_generate_what_vllms_do(outcomes, case: str, runner: str) -> None:
    """Up to where two tokens are as likely as each other; there they may part."""
    theirs, ours = outcomes["stock"][case], outcomes[f"{runner}, both"][case]
    assert theirs.error is None, theirs.log[-4000:]
    assert ours.error is None, ours.log[-4000:]
    assert "to vLLM with atom_vllm.models.model_wrapper:ATOM" in ours.log
    apart = []
    for own, stock in zip(steps_of(ours), steps_of(theirs), strict=True):
        for (token, logprob), (their_token, their_logprob) in zip(own, stock, strict=True):
            apart.append(abs(logprob - their_logprob))
            if token != their_token:
                break
    print(f"{case}: {len(apart)} tokens, log probabilities at most {max(apart):.4f} apart")
    assert max(apart) < SIXTEEN_BITS[case][-1]
    assert len(apart) > 150  # of 512


def steps_of(outcome: Outcome) -> list[list[tuple[int, float]]]:
    """Tokens with their log probabilities, by prompt."""
    if outcome.tokens is None or outcome.logprobs is None:
        raise ValueError("nothing was generated")
    pairs = zip(outcome.tokens[0], outcome.logprobs[0], strict=True)
    return [list(zip(tokens, logprobs, strict=True)) for tokens, logprobs in pairs]
