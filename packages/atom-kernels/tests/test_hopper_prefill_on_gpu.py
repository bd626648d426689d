"""Hopper's own kernel for long prompts agrees with the reference; it has no interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.cases import make_step
from atom_kernels.attention.hopper.configs import hopper_config
from atom_kernels.attention.ops import make_problem
from atom_kernels.attention.problem import AttentionProblem
from atom_kernels.cases import mismatch
from atom_kernels.mixers import MixerPlan, select_mixer
from atom_kernels.mixers.cases import MixerStep
from atom_kernels.operator import Tolerance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(hopper_config(make_problem(2, 1, 64, "bfloat16")) is None, reason="written for Hopper alone"),
]


def its_plan(problem: AttentionProblem) -> MixerPlan:
    """That of Triton, where prompts of any length are long."""
    plan = select_mixer(problem, only_backend="triton")
    kernels = plan.runner.kernels  # type: ignore[attr-defined]
    short = replace(kernels, hopper=replace(kernels.hopper, least_tokens=1, least_average=1))
    plan.runner.kernels = short  # type: ignore[attr-defined]
    return plan


def assert_agrees(problem: AttentionProblem, step: MixerStep) -> None:
    got = step.run(its_plan(problem))[0]
    expected = step.run(select_mixer(problem, only_backend="reference"))[0]
    assert mismatch(got, expected, Tolerance(2e-2, 2e-2)) is None
    assert (got.float() - expected.float()).norm() < 5e-3 * expected.float().norm()


@pytest.mark.parametrize("block_size", [16, 128, 256])
@pytest.mark.parametrize(
    "shape",
    [(16, 8, 128), (32, 8, 128), (32, 4, 128), (9, 9, 64), (64, 8, 64), (40, 8, 128), (28, 4, 128), (12, 2, 64)],
    ids=str,
)
def test_shapes_of_real_models_agree(shape: tuple[int, int, int], block_size: int):
    problem = make_problem(*shape, "bfloat16", block_size=block_size, has_sinks=shape[2] == 64)
    requests = [(1, 700), (1000, 1000), (513, 3000), (2, 77), (128, 128), (129, 129), (33, 33), (700, 2111)]
    assert_agrees(problem, make_step(problem, requests, scattered=True).to("cuda"))


@pytest.mark.parametrize("requests", [[(2, 2)], [(65, 65)], [(4096, 4096)], [(500, 5000)], [(2, 5000)]], ids=str)
def test_prompts_of_any_length_agree(requests: list[tuple[int, int]]):
    problem = make_problem(16, 8, 128, "float16")
    assert_agrees(problem, make_step(problem, requests, scattered=True).to("cuda"))


def test_what_lies_behind_a_prompt_in_its_last_block_changes_nothing():
    problem = make_problem(4, 2, 128, "bfloat16")
    step = make_step(problem, [(600, 1000)], scattered=True).to("cuda")
    clean = step.run(its_plan(problem))[0]
    last_block = int(step.geometry.block_table[0, 1000 // 16])
    for cache in step.caches:
        cache[last_block, 1000 % 16 :] = float("nan")
    assert torch.equal(step.run(its_plan(problem))[0], clean)


def test_padding_behind_the_prompts_gives_zeros():
    problem = make_problem(4, 2, 128, "bfloat16")
    step = make_step(problem, [(300, 700)]).to("cuda")
    expected = step.run(its_plan(problem))[0]
    q, k, v = (torch.cat((x, torch.full_like(x[:50], float("nan")))) for x in step.inputs)
    geometry = step.geometry
    padded = replace(
        geometry,
        query_start_loc=torch.tensor([0, 300, 350, 350], dtype=torch.int32, device="cuda"),
        seq_lens=torch.tensor([700, 0, 0], dtype=torch.int32, device="cuda"),
        block_table=geometry.block_table[[0, 0, 0]],
        slot_mapping=torch.cat((geometry.slot_mapping, geometry.slot_mapping.new_full((50,), -1))),
        num_reqs=3,
        num_tokens=350,
    )
    out = replace(step, inputs=(q, k, v), geometry=padded).run(its_plan(problem))[0]
    assert torch.equal(out[:300], expected)
    assert torch.equal(out[300:], torch.zeros_like(out[300:]))


def test_steps_replay_from_a_graph_and_leave_the_counter_at_zero():
    problem = make_problem(16, 8, 128, "bfloat16")
    plan = its_plan(problem)
    step = make_step(problem, [(3000, 4000), (700, 700)], scattered=True).to("cuda")
    kv_cache = tuple(cache.clone() for cache in step.caches)
    metadata = plan.build_metadata(step.geometry)
    expected = plan.forward(step.inputs, kv_cache, metadata).clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = plan.forward(step.inputs, kv_cache, metadata)
    for _ in range(20):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, expected)
    assert int(metadata.counter) == 0
