"""Our mixtures over vLLM's groups: whole experts on each rank, also of engines that have requests of their own.

The groups are of threads; whether vLLM's own are like them is for `make test-vllm` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_kernels.protocols import BatchGeometry
from atom_models import load_model
from stub_vllm import StubVllm, stub_vllm
from thread_ranks import Group
from vllm_ranks import NUM_BLOCKS, Coordinator, model_in_vllm

LONG, SHORT = [5, 6, 7, 8, 9, 300, 383, 2, 17], [31, 4, 4]


def step_of(tokens: Sequence[int], layers: Any, rows: Sequence[int] | None) -> Any:
    """vLLM's forward context of a prompt, or of none, with the rows of all engines where it tells them."""
    from atom_vllm.mixers.metadata import AtomMetadata

    count = len(tokens)
    geometry = BatchGeometry(
        query_start_loc=torch.tensor([0, count], dtype=torch.int32),
        seq_lens=torch.tensor([count], dtype=torch.int32),
        block_table=torch.arange(NUM_BLOCKS, dtype=torch.int32)[None],
        slot_mapping=torch.arange(count),
        num_reqs=1,
        num_tokens=count,
        num_decodes=0,
        max_query_len=count,
        max_seq_len=count,
    )
    told = None if rows is None else SimpleNamespace(num_tokens_across_dp_cpu=torch.tensor(rows, dtype=torch.int32))
    metadata = dict.fromkeys(layers, AtomMetadata(geometry)) if tokens else None
    return SimpleNamespace(attn_metadata=metadata, dp_metadata=told)


@dataclass(frozen=True)
class Ranks:
    """Ranks of vLLM's, in its order: those of an engine are neighbors."""

    num_engines: int
    size: int
    parallel: dict[str, Any]

    def logits(self, stub: StubVllm, folder: Path, prompts: Sequence[list[int]]) -> list[tuple[torch.Tensor, int]]:
        """What each rank makes of its engine's prompt, where none is a row that means nothing; and its experts."""
        every = Group(self.num_engines * self.size)
        tensor = [Group(self.size) for _ in range(self.num_engines)]
        beside = [Group(self.num_engines) for _ in range(self.size)]
        rows = [max(len(prompt), 1) for prompt in prompts]

        def run(rank: int) -> tuple[torch.Tensor, int]:
            engine, inside = divmod(rank, self.size)
            stub.own.group, stub.own.every = Coordinator(tensor[engine], inside), Coordinator(every, rank)
            stub.own.engines = Coordinator(beside[inside], engine)
            model, layers = model_in_vllm(folder, self.size, **self.parallel)
            tokens = prompts[engine]
            stub.own.step = step_of(tokens, layers, rows)
            with torch.inference_mode():
                x = model.forward(torch.tensor(tokens or [0]), torch.arange(rows[engine]))
                experts = model.model.model.layers[-1].mlp.experts.problem.num_experts
                return model.compute_logits(x), experts

        return every.run(run)


def assert_ranks_give_the_logits_of_one(folder: Path, ranks: Ranks, prompts: Sequence[list[int]]) -> None:
    expected = load_model(folder).logits([prompt for prompt in prompts if prompt])
    whole = load_model(folder).checkpoint.text_config
    num_experts = whole.get("num_experts") or whole["n_routed_experts"]
    with stub_vllm() as stub:
        # By itself first: threads must neither import modules nor make operators known to torch side by side.
        Ranks(1, 1, {}).logits(stub, folder, [SHORT])
        found = ranks.logits(stub, folder, prompts)
    of_prompts = [found[rank] for rank in range(len(found)) if prompts[rank // ranks.size]]
    for (logits, _), wanted in zip(of_prompts, [one for one in expected for _ in range(ranks.size)], strict=True):
        assert torch.allclose(logits, wanted, atol=1e-4)
    assert [experts for _, experts in found] == [num_experts // len(found)] * len(found)


EXPERTS_ASKED = {"enable_expert_parallel": True}
FAMILIES = ["qwen3_moe", pytest.param("deepseek_v3", marks=pytest.mark.slow)]


@pytest.mark.parametrize("family", FAMILIES)
def test_tensor_parallel_ranks_hold_whole_experts(family: str, tiny_family: Callable[[str], Path]) -> None:
    assert_ranks_give_the_logits_of_one(tiny_family(family), Ranks(1, 2, EXPERTS_ASKED), [LONG])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("asked", [{}, EXPERTS_ASKED], ids=["cut in vLLM's models", "whole"])
def test_engines_share_whole_experts(asked: Any, family: str, tiny_family: Callable[[str], Path]) -> None:
    ranks = Ranks(2, 1, {"data_parallel_size": 2} | asked)
    assert_ranks_give_the_logits_of_one(tiny_family(family), ranks, [LONG, SHORT])


def test_an_engine_without_requests_lends_its_experts(tiny_family: Callable[[str], Path]) -> None:
    ranks = Ranks(2, 1, {"data_parallel_size": 2})
    assert_ranks_give_the_logits_of_one(tiny_family("qwen3_moe"), ranks, [[], LONG])


def test_engines_of_two_ranks_share_whole_experts(tiny_family: Callable[[str], Path]) -> None:
    ranks = Ranks(2, 2, {"data_parallel_size": 2} | EXPERTS_ASKED)
    assert_ranks_give_the_logits_of_one(tiny_family("qwen3_moe"), ranks, [SHORT, LONG])


def test_a_mixture_is_not_run_without_the_numbers_of_tokens_of_other_engines(tiny_family: Any) -> None:
    with stub_vllm() as stub:
        from atom_vllm.models.engines import among_engines

        stub.own.step = step_of(SHORT, {}, None)
        with pytest.raises(RuntimeError, match=r"without numbers of their tokens \(dp_metadata\)"):
            among_engines(lambda *_: torch.zeros(0))(torch.tensor(SHORT))


def test_mixtures_that_exchange_rows_are_never_traced(
    tiny_family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOM_VLLM_COMPILE", "1")
    with stub_vllm():
        from atom_vllm.models.compiled import is_compiled
        from vllm_ranks import config_of

        folder = tiny_family("qwen3_moe")
        assert is_compiled(config_of(folder, 1))
        assert not is_compiled(config_of(folder, 1, data_parallel_size=2))
