"""Engines whose rows go by MORI's dispatch and combine write the tokens of one rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch

from atom_kernels.mori.dispatcher import MoriDispatchers
from atom_models import BuildContext, build_model, load_model, load_weights
from atom_models.groups import Groups
from atom_models.layers.mixture.exchange import rows_of_engines, take_part
from atom_models.layers.mixture.placement import ExpertPlacement
from atom_models.loaded_model import LoadedModel
from emulated_mori import as_process, emulated_mori
from thread_ranks import Group

NUM_TOKENS = 6
PROMPTS = ([5, 6, 7, 8, 9, 300, 383], [17, 4], [250, 251, 252, 8], [99])


@pytest.fixture(autouse=True, scope="module")
def mori() -> Iterator[None]:
    with emulated_mori():
        yield


def write(model: LoadedModel, prompts: Sequence[list[int]], rank: int) -> list[int]:
    """The greedy continuation of this rank's prompt, in step with the others; [] without one."""
    tokens = list(prompts[rank])
    for step in range(NUM_TOKENS):
        counts = [len(prompt) + step if prompt else 0 for prompt in prompts]
        with rows_of_engines(counts), torch.inference_mode():
            if tokens:
                tokens.append(int(model.logits([tokens])[0][-1].argmax()))
            else:
                take_part(model.model)
    return tokens[len(prompts[rank]) :]


def even(name: str, num_experts: int, num_ranks: int) -> ExpertPlacement:
    return ExpertPlacement.contiguous(num_experts, num_ranks)


def crossed(name: str, num_experts: int, num_ranks: int) -> ExpertPlacement:
    """Experts in turns, the first of them once more on the last rank."""
    slots = [tuple(range(rank, num_experts, num_ranks)) for rank in range(num_ranks)]
    return ExpertPlacement((*slots[:-1], (*slots[-1], 0)))


@pytest.mark.parametrize("place", [even, crossed])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3"])
def test_every_engine_writes_what_one_rank_writes(tiny_family, family, size, place):
    whole = load_model(tiny_family(family), progress=False)
    expected = [write(whole, [prompt], 0) for prompt in PROMPTS[:size]]
    group = Group(size)

    def run(rank: int) -> list[list[int]]:
        ranks = as_process(group, rank)
        context = BuildContext(
            groups=Groups(expert=ranks, data=ranks),
            place_experts=place,
            row_dispatchers=MoriDispatchers(ranks, max_rows=len(PROMPTS[0]) + NUM_TOKENS),
        )
        model = build_model(whole.checkpoint, context)
        load_weights(model, whole.checkpoint, progress=False)
        loaded = LoadedModel(model, whole.checkpoint, context)
        alone = [[], *PROMPTS[1:size]]
        return [write(loaded, PROMPTS[:size], rank), write(loaded, alone, rank)]

    for rank, (tokens, beside_an_idle_one) in enumerate(group.run(run)):
        assert tokens == expected[rank]
        assert beside_an_idle_one == (expected[rank] if rank else [])
