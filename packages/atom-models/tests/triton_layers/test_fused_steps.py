"""The operators of a step of few rows on a GPU, in order: norms, activations and additions are inside the linears."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from atom_kernels.platform import detect_platform
from atom_models import BuildContext, load_dummy_weights, mixer_layers
from atom_models.architectures import find_architecture
from atom_models.forward_context import ForwardContext, set_forward_context

SIZES = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 16}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "hidden_act": "silu"}
LATENTS = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}

# Qkv with its norm, the output with the residual; gate and up with norm and activation, down with the residual.
ATTENTION = "linear paged_attention linear"
LATENT_ATTENTION = "linear linear latent_attention linear"
MLP = "linear linear"
NORMED_TWICE = "{} rms_norm add_rms_norm"

CASES = {
    "LlamaForCausalLM": ({}, f"{ATTENTION} {MLP} {ATTENTION} {MLP} rms_norm"),
    "Gemma3ForCausalLM": (
        {"sliding_window": 8},
        " ".join(map(NORMED_TWICE.format, (ATTENTION, "linear gated_activation linear") * 2)),
    ),
    # Experts add the residual, and take no input that is yet to be normed.
    "Qwen3MoeForCausalLM": (
        EXPERTS | {"num_experts": 4},
        " ".join([f"{ATTENTION} rms_norm linear moe_route moe_experts"] * 2) + " rms_norm",
    ),
    "DeepseekV3ForCausalLM": (
        EXPERTS | LATENTS | {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
        f"{LATENT_ATTENTION} {MLP} {LATENT_ATTENTION} rms_norm linear moe_route {MLP} moe_experts rms_norm",
    ),
}


@pytest.mark.parametrize("architecture", CASES)
def test_what_is_fused_on_a_gpu(architecture: str) -> None:
    fields, expected = CASES[architecture]
    assert operators_of_a_step(architecture, fields, num_rows=3) == f"embedding {expected}"


def test_norms_of_many_rows_are_operators_of_their_own_that_add() -> None:
    halves = " add_rms_norm ".join((ATTENTION, MLP) * 2)
    expected = f"embedding rms_norm {halves} add_rms_norm"
    assert operators_of_a_step("LlamaForCausalLM", {}, num_rows=33) == expected


def test_linears_that_take_adapters_are_fused_with_their_neighbors_all_the_same() -> None:
    platform = replace(detect_platform(), device="cuda")

    def limits(takes_adapters: bool) -> list[Any]:
        context = BuildContext(dtype=torch.float32, platform=platform, takes_adapters=takes_adapters)
        model: Any = find_architecture("LlamaForCausalLM")(SIZES | HEADS, context)
        layer = model.model.layers[0]
        linears = (layer.self_attn.qkv_proj, layer.self_attn.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj)
        return [(linear.max_fused_rows, linear.max_normed_rows) for linear in linears] + [layer.mlp.act.problem]

    assert limits(takes_adapters=True) == limits(takes_adapters=False)
    assert limits(takes_adapters=True)[0] > (0, 0)


def operators_of_a_step(architecture: str, fields: dict[str, Any], *, num_rows: int) -> str:
    # Here the platform may only say that it is a GPU: the step is traced, and not run.
    context = BuildContext(dtype=torch.float32, platform=replace(detect_platform(), device="cuda"))
    model: Any = find_architecture(architecture)(SIZES | HEADS | fields, context)
    load_dummy_weights(model)
    names: list[str] = []
    mixers = mixer_layers(model)

    def note(graph: torch.fx.GraphModule, inputs: object) -> object:
        for node in graph.graph.nodes:
            package, _, operator = str(node.target).partition(".")
            if package in ("atom_kernels", "atom_models"):
                # A mixer is called by its layer's name.
                name = operator.split(".")[0]
                names.append(mixers[str(node.args[1])].problem.name if name == "mix" else name)
            elif package.startswith("triton"):  # a kernel that is not behind an operator would be traced itself
                names.append(package)
        return lambda *_: (torch.zeros(num_rows, SIZES["hidden_size"]),)

    torch.compiler.reset()
    with torch.inference_mode(), set_forward_context(ForwardContext({}, {})):
        torch.compile(model, fullgraph=True, backend=note)(
            torch.zeros(num_rows, dtype=torch.int64), torch.arange(num_rows)
        )
    return " ".join(names)
