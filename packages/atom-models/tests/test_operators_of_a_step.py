"""The operators of a step, in order: between all halves of layers, addition and RMS norm are one of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from atom_models import load_model, mixer_layers, supported_architectures
from atom_models.paged_run import PagedRun, SequenceStep
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
    **dict.fromkeys(("llama", "llama-3.1", "mistral", "mistral-full"), (ATTENTION, MLP) * 2),
    **dict.fromkeys(("qwen2", "qwen2-window", "qwen3"), (ATTENTION, MLP) * 2),
    "nemotron": (ATTENTION, "linear activation linear") * 2,
    "gemma3": ("linear paged_attention linear rms_norm", "linear gated_activation linear rms_norm") * 4,
    "qwen3_moe": (ATTENTION, EXPERTS) * 2,
    "qwen3_moe-mixed": (ATTENTION, MLP, ATTENTION, EXPERTS, *(ATTENTION, MLP) * 2),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe-text"),
        (*(DELTA_NET, GATED_SHARED_EXPERTS) * 3, GATED_ATTENTION, GATED_SHARED_EXPERTS),
    ),
    **dict.fromkeys(("qwen3_5", "qwen3_5-text"), (*(DELTA_NET, MLP) * 3, GATED_ATTENTION, MLP)),
    "mixtral": (ATTENTION, EXPERTS) * 2,
    "minimax_m2": ("linear rms_norm rms_norm paged_attention linear", EXPERTS) * 2,
    "glm4_moe": (ATTENTION, MLP, *(ATTENTION, SHARED_EXPERTS) * 2),
    "gpt_oss": (ATTENTION, EXPERTS) * 4,
    "deepseek_v2-lite": ("linear latent_attention linear", MLP, "linear latent_attention linear", SHARED_EXPERTS),
    **dict.fromkeys(("kimi_k2", "kimi_k25"), (LATENT_ATTENTION, MLP, LATENT_ATTENTION, SHARED_EXPERTS)),
    "kimi_linear": (KDA, MLP, *(KDA, SHARED_EXPERTS) * 2, "linear latent_attention linear", SHARED_EXPERTS),
    "deepseek_v32": (INDEX, MLP, *(INDEX, SHARED_EXPERTS) * 2),
    "glm_moe_dsa": (INDEX, MLP, SPARSE_ATTENTION, SHARED_EXPERTS, INDEX, SHARED_EXPERTS),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "glm4_moe_lite"),
        (LATENT_ATTENTION, MLP, *(LATENT_ATTENTION, SHARED_EXPERTS) * 2),
    ),
}


def operators_of_a_step(model: torch.nn.Module) -> str:
    names: list[str] = []
    mixers = mixer_layers(model)

    def note(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        for node in graph.graph.nodes:
            package, _, operator = str(node.target).partition(".")
            if package in ("atom_kernels", "atom_models"):
                # A mixer is called by its layer's name.
                name = operator.split(".")[0]
                names.append(mixers[str(node.args[1])].problem.name if name == "mix" else name)
        return graph.forward

    torch.compiler.reset()
    run = PagedRun(model, 1)
    run.model = torch.compile(model, fullgraph=True, backend=note)
    run.step([SequenceStep([7, 8, 9], 0, [0])])
    return " ".join(names)


@pytest.mark.parametrize("family", families(supported_architectures()))
def test_each_half_of_a_layer_is_followed_by_one_operator_that_adds_and_norms(
    family: str, tiny_family: Callable[[str], Path]
) -> None:
    model = load_model(tiny_family(family), progress=False).model
    # No kernel adds and takes a layer norm: the addition is torch's.
    norm, add_norm = ("layer_norm", "layer_norm") if family == "nemotron" else ("rms_norm", "add_rms_norm")
    halves = f" {add_norm} ".join(HALVES[family])
    assert operators_of_a_step(model) == f"embedding {norm} {halves} {add_norm}"
