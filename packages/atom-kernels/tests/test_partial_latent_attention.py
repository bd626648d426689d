"""What ranks find in their parts of a context is, put together, what is found in the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.context import PartialMlaProblem, merge_parts
from atom_kernels.attention.context.part import part_of_step
from atom_kernels.attention.mla import MlaProblem
from atom_kernels.attention.mla.absorption import absorb, split_kv_b
from atom_kernels.attention.mla.cases import make_problem, make_step
from atom_kernels.mixers import select_mixer
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.mixers.plan import usable_plans
from thread_ranks import Group

WHOLE = make_problem(3, 32, 16, 8, 12)
USABLE = [plan.backend for plan in usable_plans(PartialMlaProblem.of(WHOLE, 2, 0))]
# Decodes, a prompt that is new, chunks, and queries that see nothing of the last rank.
REQUESTS = [(1, 1), (1, 64), (1, 77), (2, 3), (20, 20), (7, 65), (70, 300)]
every_backend = pytest.mark.parametrize("backend", USABLE)
every_size = pytest.mark.parametrize("size", [2, 4])


def part_of(step: MixerStep, problem: PartialMlaProblem) -> MixerStep:
    """The step with the rank's latents alone, and the queries of all ranks: those of rank r are r + 1 times ours."""
    weights = split_kv_b(WHOLE, step.weights["kv_b"])
    absorbed = absorb(WHOLE, step.inputs[0], weights)
    caches = tuple(cache[:, problem.rank :: problem.num_ranks].clone() for cache in step.caches)
    return replace(
        step,
        inputs=(torch.cat([absorbed * (rank + 1) for rank in range(problem.num_ranks)], 1), step.inputs[1]),
        caches=caches,
    )


def run_parts(step: MixerStep, backend: str, size: int) -> list[tuple[torch.Tensor, ...]]:
    """Outputs and caches of each rank."""
    group = Group(size)

    def run(rank: int) -> tuple[torch.Tensor, ...]:
        problem = PartialMlaProblem.of(WHOLE, size, rank)
        found, cache = part_of(step, problem).run(select_mixer(problem, only_backend=backend))
        latent_THC = merge_parts(found, group.as_rank(rank))
        return torch.einsum("thc,hvc->thv", latent_THC, split_kv_b(WHOLE, step.weights["kv_b"]).value), cache

    return group.run(run)


@every_backend
@every_size
@pytest.mark.parametrize("scattered", [False, True])
def test_parts_of_a_context_give_what_the_whole_gives(backend: str, size: int, scattered: bool):
    step = make_step(WHOLE, REQUESTS, scattered=scattered)
    parts, plan = run_parts(step, backend, size), select_mixer(WHOLE, only_backend="reference")
    for rank, (out, _) in enumerate(parts):
        expected, cache = replace(step, inputs=(step.inputs[0] * (rank + 1), step.inputs[1])).run(plan)
        torch.testing.assert_close(out, expected, atol=2e-5, rtol=2e-5)
    # Side by side, the ranks' blocks are those of the whole cache.
    together = torch.stack([own for _, own in parts], 2).flatten(1, 2)
    torch.testing.assert_close(together, cache, atol=1e-6, rtol=1e-6)


@every_backend
def test_a_query_that_sees_nothing_of_a_part_finds_nothing_there(backend: str):
    problem = PartialMlaProblem.of(WHOLE, 4, 3)
    step = part_of(make_step(WHOLE, [(1, 2), (5, 5)]), problem)
    found, _ = step.run(select_mixer(problem, only_backend=backend))
    sees = torch.tensor([False, False, False, False, True, True])
    assert not found[~sees, :, :-1].any()
    assert torch.isneginf(found[..., -1]).all(1).tolist() == (~sees).tolist()


@every_backend
def test_a_query_finds_the_same_in_any_chunk(backend: str):
    problem = PartialMlaProblem.of(WHOLE, 2, 1)
    step = part_of(make_step(WHOLE, [(90, 90)]), problem)
    found, cache = step.run(select_mixer(problem, only_backend=backend))
    last = part_of(make_step(WHOLE, [(40, 90)]), problem)
    inputs = tuple(x[-40:] for x in step.inputs)
    assert step.prologue is not None
    prologue = replace(step.prologue, positions=step.prologue.positions[-40:])
    again, _ = replace(last, inputs=inputs, caches=(cache,), prologue=prologue).run(
        select_mixer(problem, only_backend=backend)
    )
    torch.testing.assert_close(again, found[-40:], atol=1e-6, rtol=1e-6)


def test_padding_finds_nothing_anywhere():
    nothing = torch.zeros(1, 4, 5)
    nothing[..., -1] = float("-inf")
    group = Group(2)
    for merged in group.run(lambda rank: merge_parts(nothing.clone(), group.as_rank(rank))):
        assert torch.equal(merged, torch.zeros(1, 2, 4))


def test_a_block_that_does_not_come_out_even_is_refused():
    with pytest.raises(ValueError, match="a block of 16 tokens cannot be shared evenly by 3 ranks: give a block_size"):
        PartialMlaProblem.of(WHOLE, 3, 0)


@every_size
def test_a_rank_keeps_its_part_of_a_block(size: int):
    whole, part = WHOLE.layout, PartialMlaProblem.of(WHOLE, size, 1).layout
    assert (part.block_size, part.block_bytes * size) == (whole.block_size, whole.block_bytes)


def test_the_layer_of_all_ranks_is_latent_attention_over_latents_as_they_are():
    absorbed = PartialMlaProblem.of(WHOLE, 4, 1).absorbed
    assert isinstance(absorbed, MlaProblem)
    assert (absorbed.num_heads, absorbed.query_dim, absorbed.block_size) == (12, WHOLE.latent_dim, 4)


def test_a_token_without_a_slot_has_none_on_any_rank():
    geometry = make_step(WHOLE, [(3, 40)]).geometry
    geometry.slot_mapping[1] = -1
    slots = [part_of_step(PartialMlaProblem.of(WHOLE, 4, rank), geometry).geometry.slot_mapping for rank in range(4)]
    assert [[slot >= 0 for slot in token].count(True) for token in torch.stack(slots, 1).tolist()] == [1, 0, 1]
