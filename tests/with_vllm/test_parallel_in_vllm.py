"""Models of ours on ranks that hold whole experts, and on engines that share out requests: tokens are one rank's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.with_vllm.conftest import IN_PROCESS

ONE_CORE_EACH = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
WHOLE_EXPERTS = {"enable_expert_parallel": True}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def alone(run_jobs, tiny) -> Any:
    """``alone(family)``: the tokens of one rank of ours."""
    found: dict[str, Any] = {}

    def tokens(family: str) -> Any:
        if family not in found:
            job = {"model": tiny(family), "llm": {"max_model_len": 256}, "num_tokens": 32}
            [outcome] = run_jobs([job], IN_PROCESS)
            assert outcome.error is None, outcome.log[-4000:]
            found[family] = outcome.tokens
        return found[family]

    return tokens


@pytest.mark.parametrize(
    ("family", "ranks"),
    [
        ("qwen3_moe", {"tensor_parallel_size": 2} | WHOLE_EXPERTS),
        ("deepseek_v3", {"tensor_parallel_size": 2} | WHOLE_EXPERTS),
        ("llama-3.1", {"data_parallel_size": 2}),
        ("qwen3_moe", {"data_parallel_size": 2}),
        ("qwen3_moe", {"data_parallel_size": 2} | WHOLE_EXPERTS),
    ],
    ids=["experts", "experts and latents", "engines", "engines of a mixture", "engines that spread experts"],
)
def test_two_ranks_change_nothing(generate, tiny, alone, family: str, ranks: dict[str, Any]) -> None:
    tokens, log = generate(tiny(family), ONE_CORE_EACH, llm={"max_model_len": 256} | ranks, num_tokens=32)
    assert tokens == alone(family)
    assert log.count("to vLLM with atom_vllm.models.model_wrapper:ATOM") == 2
    assert "is vLLM's own, because" not in log
