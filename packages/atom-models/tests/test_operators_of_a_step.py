"""The graph of a step: one for any number of tokens, in which addition and RMS norm are one operator."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch

from atom_models import load_model, mixer_layers, supported_architectures
from atom_models.paged_run import PagedRun, SequenceStep
from atom_models.vision.sees import language_modules
from tiny_architectures import families

ATTENTION, LATENT_ATTENTION = "linear paged_attention linear", "linear rms_norm linear latent_attention linear"
SPARSE_ATTENTION = "linear rms_norm linear sparse_latent_attention linear"
INDEX = "linear rms_norm linear layer_norm lightning_index sparse_latent_attention linear"
DELTA_NET = "linear delta_net gated_rms_norm linear"
KDA = "linear linear delta_net linear rms_norm linear"
MLP = "linear gated_activation linear"
EXPERTS, SHARED_EXPERTS = "linear moe_route moe_experts", f"linear moe_route {MLP} moe_experts"
GATED_SHARED_EXPERTS = f"linear moe_route {MLP} linear sigmoid_gate moe_experts"
GATED_ATTENTION = "linear paged_attention sigmoid_gate linear"

# The halves of each family's layers, attention and what follows it.
HALVES = {
    **dict.fromkeys(
        ("llama", "qwen2", "qwen3", "qwen2_5_vl", "qwen3_vl", "mistral3", "ministral3"), (ATTENTION, MLP) * 2
    ),
    "nemotron": (ATTENTION, "linear activation linear") * 2,
    "gemma3": ("linear paged_attention linear rms_norm", "linear gated_activation linear rms_norm") * 4,
    **dict.fromkeys(("qwen3_moe", "qwen3_vl_moe"), (ATTENTION, EXPERTS) * 2),
    "qwen3_moe-mixed": (ATTENTION, MLP, ATTENTION, EXPERTS, *(ATTENTION, MLP) * 2),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_moe"),
        (*(DELTA_NET, GATED_SHARED_EXPERTS) * 3, GATED_ATTENTION, GATED_SHARED_EXPERTS),
    ),
    "qwen3_5": (*(DELTA_NET, MLP) * 3, GATED_ATTENTION, MLP),
    "mixtral": (ATTENTION, EXPERTS) * 2,
    "minimax_m2": ("linear rms_norm rms_norm paged_attention linear", EXPERTS) * 2,
    "glm4_moe": (ATTENTION, MLP, *(ATTENTION, SHARED_EXPERTS) * 2),
    "gpt_oss": (ATTENTION, EXPERTS) * 4,
    "deepseek_v2-lite": ("linear latent_attention linear", MLP, "linear latent_attention linear", SHARED_EXPERTS),
    "kimi_linear": (KDA, MLP, *(KDA, SHARED_EXPERTS) * 2, "linear latent_attention linear", SHARED_EXPERTS),
    "deepseek_v32": (INDEX, MLP, *(INDEX, SHARED_EXPERTS) * 2),
    "glm_moe_dsa": (INDEX, MLP, SPARSE_ATTENTION, SHARED_EXPERTS, INDEX, SHARED_EXPERTS),
    "deepseek_v3": (LATENT_ATTENTION, MLP, *(LATENT_ATTENTION, SHARED_EXPERTS) * 2),
}


@dataclass(frozen=True)
class Traced:
    """A model, the graphs that steps of 21, 9, 2 and 33 tokens made of it, and whether each gave the eager numbers."""

    family: str
    model: torch.nn.Module
    graphs: list[torch.fx.GraphModule]
    are_equal: list[bool]


# Mixers are one node each, whatever their window, and these have no layer that another family has not.
TRACED_AS = {
    **dict.fromkeys(("llama-3.1", "mistral", "mistral-full"), "llama"),
    "ministral3-text": "ministral3",
    "qwen2-window": "qwen2",
    "gemma3-seeing": "gemma3",
    **dict.fromkeys(("deepseek_v2", "kimi_k2", "kimi_k25", "glm4_moe_lite"), "deepseek_v3"),
    "qwen3_5-text": "qwen3_5",
    "qwen3_5_moe-text": "qwen3_5_moe",
}


@pytest.fixture(scope="module", params=[name for name in families(supported_architectures()) if name not in TRACED_AS])
def traced(request: pytest.FixtureRequest, tiny_family: Callable[[str], Path]) -> Traced:
    model = load_model(tiny_family(request.param), progress=False).model
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    eager, compiled = PagedRun(model, 16), PagedRun(model, 16)
    compiled.model = torch.compile(model, fullgraph=True, backend=keep, dynamic=True)
    draw, cached, are_equal = random.Random(0), 0, []
    for length in (21, 9, 2, 33):
        step = [SequenceStep([draw.randrange(3, 384) for _ in range(length)], cached, range(16))]
        are_equal.append(torch.equal(eager.step(step)[0], compiled.step(step)[0]))
        cached += length
    return Traced(request.param, model, graphs, are_equal)


def operators_of(traced: Traced) -> str:
    names: list[str] = []
    mixers = mixer_layers(traced.model)
    for node in traced.graphs[0].graph.nodes:
        package, _, operator = str(node.target).partition(".")
        if package in ("atom_kernels", "atom_models"):
            # A mixer is called by its layer's name.
            name = operator.split(".")[0]
            names.append(mixers[str(node.args[1])].problem.name if name == "mix" else name)
    return " ".join(names)


def test_the_model_is_one_graph_with_a_dynamic_number_of_tokens(traced: Traced) -> None:
    assert traced.are_equal == [True] * 4
    assert len(traced.graphs) == 1


def test_each_half_of_a_layer_is_followed_by_one_operator_that_adds_and_norms(traced: Traced) -> None:
    # No kernel adds and takes a layer norm: the addition is torch's.
    norm, add_norm = ("layer_norm", "layer_norm") if traced.family == "nemotron" else ("rms_norm", "add_rms_norm")
    halves = f" {add_norm} ".join(HALVES[traced.family])
    assert operators_of(traced) == f"embedding {norm} {halves} {add_norm}"


@pytest.mark.slow  # for a few seconds it writes checkpoints that no other test here needs
def test_families_that_are_not_traced_have_the_layers_of_one_that_is(tiny_family: Callable[[str], Path]) -> None:
    @cache
    def kinds(name: str) -> set[type]:
        model = load_model(tiny_family(name), progress=False).model
        return {type(module) for module in language_modules(model)} - {type(model), type(model.model)}

    assert not TRACED_AS.keys() & set(TRACED_AS.values())
    assert [name for name, other in TRACED_AS.items() if not kinds(name) <= kinds(other)] == []
