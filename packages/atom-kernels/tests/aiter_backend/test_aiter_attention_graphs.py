"""A graph may hold a step of attention through AITER: the same calls over other contents, nothing read on the host."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from aiter_calls import only_what_graphs_hold, recorded_calls
from amd_machine import amd_machine
from atom_kernels.attention.cases import make_step
from atom_kernels.attention.mla.cases import make_problem as make_latent_problem
from atom_kernels.attention.mla.cases import make_step as make_latent_step
from atom_kernels.attention.ops import make_problem
from atom_kernels.mixers import select_mixer
from atom_kernels.protocols import BatchGeometry

MACHINES = [("gfx942", "git"), ("gfx950", "pypi")]
# Two steps of the same sizes: what a graph is captured with, and what it is replayed over.
STEPS = {
    "decodes": ([(1, 5), (1, 16), (1, 129)], [(1, 128), (1, 1), (1, 30)]),
    "chunks": ([(33, 70), (4, 4), (16, 32)], [(1, 65), (20, 20), (32, 70)]),
    "mixed": ([(1, 5), (33, 70), (4, 16)], [(1, 70), (7, 7), (30, 31)]),
}
PAGED = {
    "llama": ((8, 2, 128), {"rotary_dim": 128}, {}),
    "glm": ((16, 1, 128), {"rotary_dim": 64, "interleaved": True, "norms": True}, {}),
    "gpt-oss": ((8, 1, 64), {"rotary_dim": 64}, {"has_sinks": True, "sliding_window": 20}),
}


@pytest.fixture(params=MACHINES, ids="-".join)
def machine(request):
    with recorded_calls() as calls, amd_machine(*request.param) as platform:
        yield platform, calls


def rigid(geometry):
    """With the numbers of the host that a graph is captured with, whatever the step."""
    is_decode = geometry.num_decodes == geometry.num_reqs
    return replace(geometry, max_query_len=1 if is_decode else 40, max_seq_len=136)


def widened(step, width=12):
    """The block table as wide as any step's."""
    table = step.geometry.block_table
    filler = torch.full((table.shape[0], width - table.shape[1]), 10**6, dtype=torch.int32)
    return replace(step, geometry=rigid(replace(step.geometry, block_table=torch.cat((table, filler), dim=1))))


def copy_over(target, source):
    """Every tensor of a step written over with another's, as a graph's inputs are."""
    for field in fields(target):
        ours, theirs = getattr(target, field.name), getattr(source, field.name)
        if isinstance(ours, torch.Tensor):
            ours.copy_(theirs)
        elif isinstance(ours, tuple):
            for one, other in zip(ours, theirs, strict=True):
                one[: other.shape[0]].copy_(other)
        elif isinstance(ours, BatchGeometry) or field.name == "prologue":
            copy_over(ours, theirs)


def replayed(calls, first, second, run):
    """The calls over the first contents and over the second in the same memory, and the second result."""
    run(first)  # bound, and what is made once is made
    calls.clear()
    with only_what_graphs_hold():
        run(first)
    captured = list(calls)
    copy_over(first, second)
    calls.clear()
    with only_what_graphs_hold():
        result = run(first)
    return captured, list(calls), result


def two_steps(make, problem, step, **options):
    """Steps of the same weights and memory: a block table and a cache as large as either needs."""
    first, second = (
        widened(make(problem, requests, seed=seed, **options)) for seed, requests in enumerate(STEPS[step])
    )
    prologue = replace(first.prologue, positions=second.prologue.positions)
    second = replace(second, prologue=prologue, weights=first.weights)
    blocks = max(s.caches[0].shape[0] for s in (first, second))
    return (replace(s, caches=tuple(grown(x, blocks) for x in s.caches)) for s in (first, second))


def grown(cache, blocks):
    return torch.cat((cache, cache.new_zeros((blocks - cache.shape[0], *cache.shape[1:]))))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("family", PAGED)
def test_a_step_over_pages_may_be_captured(machine, family, step):
    platform, calls = machine
    shape, options, rules = PAGED[family]
    problem = make_problem(*shape, "bfloat16", **rules)
    plan = select_mixer(problem, platform)
    assert plan.capturable
    first, second = two_steps(make_step, problem, step, **options)
    expected = second.run(select_mixer(problem, platform, only_backend="reference"))[0]
    captured, again, result = replayed(calls, first, second, lambda s: s.run(plan)[0])
    assert captured == again != []
    torch.testing.assert_close(result, expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("num_heads", [8, 20])
def test_a_step_over_latents_may_be_captured(machine, num_heads, step):
    platform, calls = machine
    problem = make_latent_problem(num_heads, 512, 64, 64, 32, "bfloat16")
    plan = select_mixer(problem, platform)
    assert plan.capturable
    first, second = two_steps(make_latent_step, problem, step)
    expected = second.run(select_mixer(problem, platform, only_backend="reference"))[0]
    weights = plan.prepare(first.weights)

    def run(step):
        return step.run_in_place(plan, tuple(x.clone() for x in step.caches), weights=weights)

    captured, again, result = replayed(calls, first, second, run)
    assert captured == again != []
    torch.testing.assert_close(result, expected, atol=3e-2, rtol=3e-2)
