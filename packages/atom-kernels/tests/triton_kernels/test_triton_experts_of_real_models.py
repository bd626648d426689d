"""Experts in the shapes of real models, of plain and of packed weights, on a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.activation import Activation
from atom_kernels.cases import mismatch
from atom_kernels.formats import Float8, Integers, Mxfp4
from atom_kernels.moe import ExpertsProblem, RoutingProblem, experts
from atom_kernels.moe.fragments import MATRIX_LAYOUT
from atom_kernels.moe.ops import MOE_EXPERTS, MOE_ROUTE
from atom_kernels.select import select

REAL_SHAPES = {
    "Qwen3-30B-A3B": ExpertsProblem(128, 8, 2048, 768, torch.bfloat16),
    "gpt-oss-20b": ExpertsProblem(32, 4, 2880, 2880, torch.bfloat16, activation=Activation.SWIGLU_OAI, bias=True),
    "DeepSeek-V2-Lite": ExpertsProblem(64, 6, 2048, 1408, torch.bfloat16),
    "gpt-oss mxfp4": ExpertsProblem(
        *(32, 4, 2880, 2880, torch.bfloat16), activation=Activation.SWIGLU_OAI, bias=True, gate_up_format=Mxfp4(),
        down_format=Mxfp4(),
    ),
    "Qwen3-30B-A3B fp8": ExpertsProblem(
        *(128, 8, 2048, 768, torch.bfloat16), gate_up_format=Float8(128, 128), down_format=Float8(128, 128)
    ),
    "Qwen3-30B-A3B int4": ExpertsProblem(
        *(128, 8, 2048, 768, torch.bfloat16), gate_up_format=Integers(4, 128), down_format=Integers(4, 128)
    ),
    "Qwen3-30B-A3B int8": ExpertsProblem(
        *(128, 8, 2048, 768, torch.bfloat16), gate_up_format=Integers(8), down_format=Integers(8)
    ),
}  # fmt: skip


def random(*shape):
    return torch.randn(*shape, device="cuda").to(torch.bfloat16)


def random_weights(problem):
    """Rounded on the device, one matrix of an expert after the other."""
    torch.manual_seed(0)
    weights = {}
    for matrix in problem.matrices.values():
        made = [
            matrix.held.quantize(random(matrix.rows, matrix.columns) * matrix.columns**-0.5)
            for _ in range(problem.num_experts)
        ]
        weights |= {name: torch.stack([one[part] for one in made]) for part, name in matrix.tensors.items()}
        bias = f"{matrix.name}_bias"
        weights[bias] = random(problem.num_experts, matrix.rows) if problem.bias else None
    return weights


@pytest.mark.gpu
@pytest.mark.parametrize("name", REAL_SHAPES)
def test_a_token_has_the_same_bits_in_any_batch_where_that_is_asked_for(name):
    problem = replace(REAL_SHAPES[name], batch_invariant=True)
    kernel = select(MOE_EXPERTS, problem).prepare(random_weights(problem))
    route = select(MOE_ROUTE, RoutingProblem(problem.num_experts, problem.top_k, problem.dtype)).prepare()
    x, logits = random(1500, problem.hidden_size), random(1500, problem.num_experts)
    whole = kernel(x, *route(logits))
    for num_tokens in (1, 3, 32, 33, 200):
        assert torch.equal(kernel(x[:num_tokens], *route(logits[:num_tokens])), whole[:num_tokens])


@pytest.mark.gpu
@pytest.mark.parametrize("name", REAL_SHAPES)
def test_shapes_of_real_models_agree_on_a_gpu_and_can_be_captured(name):
    problem = REAL_SHAPES[name]
    weights = random_weights(problem)
    plan = select(MOE_EXPERTS, problem)
    assert problem.is_plain or {row.layout.name for row in plan.rows} == {MATRIX_LAYOUT.name}
    kernel = plan.prepare(weights)
    routing = RoutingProblem(problem.num_experts, problem.top_k, problem.dtype, renormalize=True)
    route = select(MOE_ROUTE, routing).prepare()
    for num_tokens in (1, 7, 32, 128, 1024, 2000):
        x, logits = random(num_tokens, problem.hidden_size), random(num_tokens, problem.num_experts)
        kernel(x, *route(logits))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = kernel(x, *route(logits))
        # Other experts than those of the capture.
        x.copy_(random(*x.shape))
        logits.copy_(random(*logits.shape))
        graph.replay()
        found = mismatch(out, experts(problem, weights, x, *route(logits)), MOE_EXPERTS.tolerance(problem))
        assert found is None, f"{num_tokens} tokens: {found}"
