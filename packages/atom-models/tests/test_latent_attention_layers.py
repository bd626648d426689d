"""Latent attention as models compose it: names, caches, scales, other hosts, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_kernels.attention.mla import apply_mla_prologue
from atom_kernels.protocols import CacheFormat, Pages
from atom_models import BuildContext, load_model, mixer_layers
from atom_models.architectures.deepseek_v2 import DeepseekV2Attention, DeepseekV2Config
from atom_models.forward_context import ForwardContext, set_forward_context
from atom_models.layers import LatentAttention, Loadable, make_rotary, mla_scale
from atom_models.layers.loadable import expected_weights
from atom_models.paged_run import PagedRun, SequenceStep
from atom_models.quantization import choose_quantization
from tiny_architectures import make_tiny

SIZES: dict[str, Any] = {
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
}
# What of a model's config this layer does not read.
OTHERS: dict[str, Any] = {
    "vocab_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
}


def make_context(**overrides: Any) -> BuildContext:
    return BuildContext(dtype=torch.float32, **overrides)


def make_layer(context: BuildContext | None = None, *, rotary_dim: int = 4, **overrides: Any) -> DeepseekV2Attention:
    context = context or make_context()
    layer = DeepseekV2Attention(
        DeepseekV2Config(hidden_size=32, num_attention_heads=4, **(OTHERS | SIZES | overrides)),
        context,
        layer_id=0,
        prefix="model.layers.0.self_attn",
        rotary=make_rotary({"rope_type": "default"}, rotary_dim, 64, context=context, interleaved=True),
    )
    for module in layer.modules():
        if isinstance(module, Loadable):
            fill(module)
    return layer


def fill(layer: Loadable) -> None:
    for name, expected in sorted(expected_weights(layer).items()):
        generator = torch.Generator().manual_seed(len(name))
        layer.load_shard(name, torch.randn(expected.shape, generator=generator) * 0.3)
    layer.finish()


def names_of(layer: DeepseekV2Attention) -> set[str]:
    owners = [module for module in layer.modules() if isinstance(module, Loadable)]
    return {name.rpartition("self_attn.")[2] for owner in owners for name in expected_weights(owner)}


def run(layer: DeepseekV2Attention, hidden_states: torch.Tensor, *, between_graphs: Any = None) -> torch.Tensor:
    paged, count = PagedRun(layer, 4), hidden_states.shape[0]
    geometry = paged._geometry([SequenceStep([0] * count, 0, range(4))])
    plan = layer.attn.plan
    assert plan is not None
    caches = {layer.attn.name: plan.layout.allocate(4)}
    with set_forward_context(
        ForwardContext(caches, {layer.attn.name: plan.build_metadata(geometry)}, between_graphs=between_graphs)
    ):
        return layer(torch.arange(count), hidden_states)


def test_weights_have_the_names_of_published_checkpoints():
    common = {"kv_a_proj_with_mqa.weight", "kv_a_layernorm.weight", "kv_b_proj.weight", "o_proj.weight"}
    low_rank = {"q_a_proj.weight", "q_a_layernorm.weight", "q_b_proj.weight"}
    assert names_of(make_layer()) == common | low_rank
    assert names_of(make_layer(q_lora_rank=None)) == common | {"q_proj.weight"}
    biases = {"q_a_proj.bias", "kv_a_proj_with_mqa.bias", "o_proj.bias"}
    assert names_of(make_layer(attention_bias=True)) == common | low_rank | biases


def test_what_it_caches_is_one_latent_a_token():
    problem = make_layer(make_context(cache=CacheFormat("bfloat16"))).attn.problem
    assert problem.layout.block_bytes == problem.block_size * (16 + 4) * 2
    assert problem.keeps == Pages()


def test_another_host_may_attend_in_its_own_way():
    class Host:
        plan = None

        def __init__(self, problem, layer_name, context):
            self.problem = problem

        def take_weights(self, weights):
            self.kv_b = weights["kv_b"]

        def mix(self, inputs, prologue):
            q, kv = apply_mla_prologue(self.problem, *inputs, prologue)
            latent, rotary_key = kv.split([16, 4], dim=1)
            k, v = (latent @ self.kv_b.T).view(len(q), 4, 14).split([8, 6], dim=2)
            k = torch.cat((k, rotary_key.unsqueeze(1).expand(-1, 4, -1)), dim=2)
            q, k, v = (x.transpose(0, 1) for x in (q, k, v))
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return out.transpose(0, 1).contiguous()

    theirs, ours = make_layer(make_context(mixer_host=Host)), make_layer()
    hidden_states = torch.randn(7, 32)
    assert theirs.attn.plan is None
    got = theirs(torch.arange(7), hidden_states)
    torch.testing.assert_close(got, run(ours, hidden_states), atol=1e-5, rtol=1e-5)


def test_the_scale_has_the_square_of_yarns_temperature():
    yarn = {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    assert mla_scale(192, yarn) == pytest.approx(192**-0.5 * (0.1 * math.log(40.0) + 1.0) ** 2)
    assert mla_scale(192, yarn | {"mscale_all_dim": 0.0}) == 192**-0.5
    assert mla_scale(192, yarn | {"factor": 1.0}) == 192**-0.5
    assert mla_scale(192, {"rope_type": "default"}) == 192**-0.5
    assert mla_scale(192, {"rope_type": "yarn", "factor": 40.0}) == 192**-0.5
    assert mla_scale(192, {}) == 192**-0.5
    assert mla_scale(192, yarn | {"rope_type": "default"}) == 192**-0.5


def test_a_step_in_pieces_gets_from_attention_what_a_whole_step_gets():
    layer, hidden_states = make_layer(), torch.randn(7, 32)

    def mix_at_once(mix, inputs, out):
        out.copy_(mix(*inputs))
        assert out.shape == (7, 4, 6)

    whole = run(layer, hidden_states)
    torch.testing.assert_close(run(layer, hidden_states, between_graphs=mix_at_once), whole)


def test_a_part_that_only_turns_in_part_is_refused():
    with pytest.raises(ValueError, match="2 of 4 rotary elements would turn"):
        make_layer(rotary_dim=2)


def test_biases_without_a_low_rank_of_queries_are_refused():
    with pytest.raises(ValueError, match="attention_bias needs q_lora_rank"):
        make_layer(q_lora_rank=None, attention_bias=True)


def test_what_makes_keys_and_values_stays_dense_when_linears_are_quantized_on_loading():
    exact, rounded = make_layer(), make_layer(make_context(quantization=choose_quantization({}, "int8")))
    hidden_states = torch.randn(5, 32)
    torch.testing.assert_close(run(rounded, hidden_states), run(exact, hidden_states), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rotary_parts_turn_as_the_config_says(tmp_path: Path, interleaved: bool):
    folder = make_tiny("deepseek_v3", tmp_path, rope_interleave=interleaved)
    layer = next(iter(mixer_layers(load_model(folder / "transformers", progress=False).model).values()))
    assert isinstance(layer, LatentAttention)
    assert layer._rotary.interleaved is interleaved


def test_chunks_of_a_prompt_give_the_same_bits_in_float32(tiny_family: Any):
    loaded = load_model(tiny_family("deepseek_v3"), progress=False)
    plan = next(iter(mixer_layers(loaded.model).values())).plan
    if plan is None or plan.backend != "native":
        pytest.skip("torch's kernels do not promise it")
    tokens = [3 + (7 * index) % 380 for index in range(90)]
    whole = PagedRun(loaded.model, 8).step([SequenceStep(tokens, 0, range(8))])[0]
    paged, parts = PagedRun(loaded.model, 8), []
    for start, end in ((0, 1), (1, 8), (8, 50), (50, 90)):
        parts += paged.step([SequenceStep(tokens[start:end], start, range(8))])
    assert torch.equal(torch.cat(parts), whole)


def test_a_routing_that_is_not_known_is_refused(tmp_path: Path):
    folder = make_tiny("deepseek_v2", tmp_path)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace("group_limited_greedy", "best_of_all"))
    with pytest.raises(ValueError, match="topk_method is 'best_of_all'"):
        load_model(folder, progress=False)
