"""Our models over ranks of vLLM's that share a context: each keeps some tokens, and all give the logits of one rank.

Steps are described as vLLM does it; whether its own ranks and steps are like these is for `make test-vllm` to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom_kernels.attention.context.cases import make_problem, make_step
from atom_kernels.mixers import select_mixer
from atom_models import load_model
from stub_vllm import StubVllm, stub_vllm
from thread_ranks import Group
from vllm_ranks import BLOCK_SIZE, Coordinator, model_in_vllm

NUM_BLOCKS = 8


@dataclass(frozen=True)
class Request:
    """Its tokens, and vLLM's blocks for them."""

    tokens: list[int]
    blocks: list[int]


REQUESTS = (
    Request([3 + 7 * index % 290 for index in range(62)], [7, 2, 5, 1]),
    Request([9, 8, 7, 300, 12, 45, 6, 7, 8, 9, 10, 11, 31, 5], [6]),
)
# The requests of each step, with the run of tokens that is new: chunks of a prompt, mixed steps, and decodes.
STEPS = (
    {0: range(43)},
    {0: range(43, 55)},
    {0: range(55, 56), 1: range(1)},
    {0: range(56, 57), 1: range(1, 12)},
    {0: range(57, 58), 1: range(12, 13)},
    {1: range(13, 14), 0: range(58, 62)},
)


def slot_of(request: Request, position: int, size: int, rank: int) -> int:
    """Where a rank of vLLM's writes a token, by the rule of its block tables; -1 where another rank does."""
    block, offset = divmod(position, BLOCK_SIZE * size)
    return request.blocks[block] * BLOCK_SIZE + offset // size if offset % size == rank else -1


def described(step: dict[int, range], size: int, rank: int) -> Any:
    """vLLM's ``CommonAttentionMetadata`` of a step for one of `size` ranks that share a context."""
    runs = list(step.values())
    lengths = [len(run) for run in runs]
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    table = torch.zeros(len(runs), max(len(request.blocks) for request in REQUESTS), dtype=torch.int32)
    for row, index in zip(table, step, strict=True):
        row[: len(REQUESTS[index].blocks)] = torch.tensor(REQUESTS[index].blocks)
    slots = [slot_of(REQUESTS[index], position, size, rank) for index, run in step.items() for position in run]
    return SimpleNamespace(
        num_reqs=len(runs),
        num_actual_tokens=sum(lengths),
        max_query_len=max(lengths),
        max_seq_len=max(run.stop for run in runs),
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor([run.stop for run in runs], dtype=torch.int32),
        block_table_tensor=table,
        slot_mapping=torch.tensor(slots),
    )


def logits_of_a_rank(stub: StubVllm, folder: Path, group: Group, contexts: list[Group], rank: int) -> list[Any]:
    """What a rank's model makes of each step."""
    from atom_vllm.mixers.metadata import AtomMetadataBuilder

    size = contexts[0].size
    stub.own.group = Coordinator(group, rank)
    stub.own.context = Coordinator(contexts[rank // size], rank % size)
    model, layers = model_in_vllm(folder, group.size, size, NUM_BLOCKS)
    builder: Any = AtomMetadataBuilder(None, list(layers), None, torch.device("cpu"))
    found = []
    with torch.inference_mode():
        for step in STEPS:
            metadata = builder.build(0, described(step, size, rank % size))
            stub.own.step = SimpleNamespace(attn_metadata=dict.fromkeys(layers, metadata))
            tokens = [REQUESTS[index].tokens[position] for index, run in step.items() for position in run]
            positions = [position for run in step.values() for position in run]
            found.append(model.compute_logits(model.forward(torch.tensor(tokens), torch.tensor(positions))))
    return found


def expected_logits(folder: Path) -> list[torch.Tensor]:
    """The same of one rank outside of vLLM, which takes each request at once."""
    whole = load_model(folder).logits([request.tokens for request in REQUESTS])
    return [torch.cat([whole[index][run.start : run.stop] for index, run in step.items()]) for step in STEPS]


@pytest.mark.parametrize(("size", "context_size"), [(2, 2), pytest.param(4, 2, marks=pytest.mark.slow)])
def test_ranks_that_share_a_context_give_the_logits_of_one(
    size: int, context_size: int, tiny_family: Callable[[str], Path]
) -> None:
    folder = tiny_family("deepseek_v3")
    expected = expected_logits(folder)
    group, contexts = Group(size), [Group(context_size) for _ in range(size // context_size)]
    with stub_vllm() as stub:
        # By itself first: threads must neither import modules nor make operators known to torch side by side.
        alone = logits_of_a_rank(stub, folder, Group(1), [Group(1)], 0)
        found = group.run(lambda rank: logits_of_a_rank(stub, folder, group, contexts, rank))
    for logits in (alone, *found):
        for ours, theirs in zip(logits, expected, strict=True):
            assert torch.allclose(ours, theirs, atol=1e-4)


def test_tokens_that_another_rank_keeps_have_no_slot() -> None:
    with stub_vllm():
        from atom_vllm.mixers.metadata import geometry_of

        ranks = [Group(2).as_rank(rank) for rank in range(2)]
        slots = [geometry_of(described({1: range(4)}, 2, rank.rank), rank).slot_mapping.tolist() for rank in ranks]
    first = REQUESTS[1].blocks[0] * 2 * BLOCK_SIZE
    assert slots == [[first, -1, first + 2, -1], [-1, first + 1, -1, first + 3]]


def test_traced_layers_give_vllms_operator_what_a_rank_finds_for_the_heads_of_all() -> None:
    problem = make_problem(4, 32, 16, 8, 12, 2, 1)
    step = make_step(problem, [(1, 40), (33, 70)])
    plan = select_mixer(problem)
    expected = step.run_in_place(plan, tuple(cache.clone() for cache in step.caches))
    with stub_vllm():
        from atom_vllm.mixers.latent_attention import LatentKernels
        from atom_vllm.mixers.metadata import AtomMetadata

        impl = LatentKernels(problem)
        impl.take_weights(step.weights)
        impl.owner = SimpleNamespace(prologue=lambda positions: replace(step.prologue, positions=positions))
        output, (queries, latents) = torch.full_like(expected, torch.nan), step.inputs
        positions, metadata = step.prologue.positions, AtomMetadata(step.geometry)
        impl.forward(None, queries, latents, latents, step.caches[0].clone(), metadata, output, positions)
        assert torch.allclose(output, expected, atol=1e-5)
        impl.forward(None, queries, latents, latents, torch.empty(0), None, output, positions)
        assert not output.any()  # without metadata vLLM measures memory
