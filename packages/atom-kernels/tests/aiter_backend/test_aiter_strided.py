"""Attention through AITER over tensors with holes: lengths that are columns, heads in another order of memory."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from amd_machine import amd_machine
from atom_kernels.attention.cases import make_step
from atom_kernels.attention.mla.cases import make_problem as make_latent_problem
from atom_kernels.attention.mla.cases import make_step as make_latent_step
from atom_kernels.attention.ops import make_problem
from atom_kernels.mixers import select_mixer

REQUESTS = [(1, 5), (1, 40), (33, 70), (4, 16)]
PAGED = {
    "shuffled": ((8, 2, 128), {}, {"rotary_dim": 128}),
    "shuffled without rotation": ((8, 2, 128), {}, {}),
    "unified": ((8, 1, 64), {"has_sinks": True, "sliding_window": 20}, {"rotary_dim": 64}),
    "unified with half of the head rotated": ((4, 2, 96), {}, {"rotary_dim": 48}),
}


@pytest.fixture(params=[("gfx942", "git"), ("gfx950", "pypi")], ids="-".join)
def machine(request):
    with amd_machine(*request.param) as platform:
        yield platform


def as_a_column(x):
    """The same numbers, with others between them."""
    return torch.stack((x, torch.full_like(x, -7)), dim=-1)[..., 0]


def with_heads_last(x_THD):
    return x_THD.transpose(1, 2).contiguous().transpose(1, 2)


def over_columns(step):
    """The step with lengths, slots and positions that are columns of something wider."""
    names = ("query_start_loc", "seq_lens", "slot_mapping", "block_table")
    columns = {name: as_a_column(getattr(step.geometry, name)) for name in names}
    step = replace(step, geometry=replace(step.geometry, **columns))
    return replace(step, prologue=step.prologue and in_prologue(step.prologue))


def in_prologue(prologue):
    given = {field.name: getattr(prologue, field.name) for field in fields(prologue)}
    return replace(prologue, positions=as_a_column(given["positions"]))


@pytest.mark.parametrize("name", PAGED)
def test_a_step_over_pages_takes_tensors_with_holes(machine, name):
    shape, rules, options = PAGED[name]
    problem = make_problem(*shape, "bfloat16", **rules)
    plan = select_mixer(problem, machine)
    assert plan.backend == "aiter"
    step = make_step(problem, REQUESTS, scattered=True, **options)
    heads = tuple(with_heads_last(x) for x in step.inputs)
    for strided in (over_columns(step), replace(step, inputs=heads)):
        for got, expected in zip(strided.run(plan), step.run(plan), strict=True):
            assert torch.equal(got, expected)


def test_sinks_may_have_the_dtype_of_the_model(machine):
    problem = make_problem(8, 1, 64, "bfloat16", has_sinks=True, sliding_window=20)
    plan = select_mixer(problem, machine)
    step = make_step(problem, [(20, 20), (7, 7)], rotary_dim=64)
    expected = step.run(select_mixer(problem, machine, only_backend="reference"))[0]
    for prompts_are_new in (False, True):
        step = replace(step, geometry=replace(step.geometry, prompts_are_new=prompts_are_new))
        torch.testing.assert_close(step.run(plan)[0], expected, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("requests", [REQUESTS, [(20, 20), (7, 7)]], ids=["mixed", "new"])
def test_a_step_over_latents_takes_tensors_with_holes(machine, requests):
    problem = make_latent_problem(16, 512, 128, 64, 128, "bfloat16")
    plan = select_mixer(problem, machine)
    assert plan.backend == "aiter"
    step = make_latent_step(problem, requests, scattered=True)
    step = replace(step, geometry=replace(step.geometry, prompts_are_new=requests is not REQUESTS))
    for strided in (over_columns(step), replace(step, inputs=(with_heads_last(step.inputs[0]), step.inputs[1]))):
        for got, expected in zip(strided.run(plan), step.run(plan), strict=True):
            assert torch.equal(got, expected)
