"""What relatives of Llama differ in, as layers: layer norms, MLPs without a gate, parallel residuals."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from atom_models import BuildContext, LoadedModel, load_weights, open_checkpoint
from atom_models.architectures.llama import LlamaAttention, LlamaConfig
from atom_models.architectures.nemotron import NemotronConfig
from atom_models.config.reading import read_config
from atom_models.decoder.causal_lm import Decoder, DecoderForCausalLM
from atom_models.groups import Groups
from atom_models.layers import (
    GatedActivation,
    Layer,
    LayerNorm,
    MergedColumnParallelLinear,
    Residual,
    RowParallelLinear,
    UngatedMLP,
    make_rotary,
)
from atom_models.layers.loadable import expected_weights
from atom_models.layers.norms.residual import summed
from atom_models.requirements.parameters import count_parameters
from tiny_architectures import redraw
from tiny_models import write_tokenizer

SIZES = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def make_context(**overrides):
    return BuildContext(**{"dtype": torch.float32, **overrides})


def fill(layer):
    weights = {name: torch.randn(expected.shape) for name, expected in expected_weights(layer).items()}
    for name, weight in weights.items():
        layer.load_shard(name, weight)
    layer.finish()
    return weights


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_a_layer_norm_subtracts_the_mean_and_adds_its_offset_to_the_weight(bias, offset):
    norm = LayerNorm(48, 1e-3, make_context(), prefix="norm", bias=bias, weight_offset=offset)
    weights, x = fill(norm), torch.randn(5, 48) + 3
    assert list(weights) == (["norm.weight", "norm.bias"] if bias else ["norm.weight"])

    def expected(x):
        scale = weights["norm.weight"] + offset
        return torch.nn.functional.layer_norm(x, (48,), scale, weights.get("norm.bias"), 1e-3)

    assert torch.allclose(norm(x), expected(x), atol=1e-5)
    residual = Residual(x).plus(torch.randn(5, 48))
    assert torch.allclose(norm(residual), expected(residual.tensor()), atol=1e-5)


def test_every_rank_holds_a_layer_norm_whole():
    for num_ranks in (1, 4):
        context = make_context(groups=Groups(SimpleNamespace(rank=0, size=num_ranks)))
        assert count_parameters(LayerNorm(48, 1e-5, context, prefix="norm")).parameters == 96


def test_nemotron_rotates_half_of_each_head_where_its_config_does_not_say():
    read = read_config(NemotronConfig, SIZES | {"rope_parameters": {"rope_theta": 10000.0}})
    assert read.rope["partial_rotary_factor"] == transformers.NemotronConfig().rope_parameters["partial_rotary_factor"]
    read = read_config(NemotronConfig, SIZES | {"rope_parameters": {"partial_rotary_factor": 0.25}})
    assert read.rope["partial_rotary_factor"] == 0.25


@pytest.mark.parametrize(
    ("hidden_act", "function"),
    [
        ("relu2", lambda x: torch.relu(x) ** 2),
        ("relu", torch.relu),
        ("gelu", torch.nn.functional.gelu),
        ("gelu_new", lambda x: torch.nn.functional.gelu(x, approximate="tanh")),
        ("silu", torch.nn.functional.silu),
    ],
)
def test_an_mlp_without_a_gate_has_an_activation_between_two_linears(hidden_act, function):
    mlp = UngatedMLP(32, 56, hidden_act, context=make_context(), prefix="mlp", up="fc1", down="fc2", bias=True)
    up, down = fill(mlp.up_proj), fill(mlp.down_proj)
    x = torch.randn(5, 32)
    hidden = function(x @ up["mlp.fc1.weight"].t() + up["mlp.fc1.bias"])
    expected = hidden @ down["mlp.fc2.weight"].t() + down["mlp.fc2.bias"]
    assert torch.allclose(summed(mlp(x)), expected, atol=1e-3, rtol=1e-4)


class CohereConfig(LlamaConfig):
    logit_scale = 0.0625


class CohereDecoderLayer(Layer):
    """Attention and MLP read the same normed input, and both are added to the residual."""

    def __init__(self, config, context, *, layer_id, prefix, rotary):
        super().__init__()
        self.input_layernorm = LayerNorm(
            config.hidden_size, config.rms_norm_eps, context, prefix=f"{prefix}.input_layernorm", bias=False
        )
        self.self_attn = LlamaAttention(config, context, layer_id=layer_id, prefix=f"{prefix}.self_attn", rotary=rotary)
        size = config.intermediate_size
        shards = {"gate_proj": size, "up_proj": size}
        self.gate_up_proj = MergedColumnParallelLinear(
            config.hidden_size, shards, context, prefix=f"{prefix}.mlp.gate_up_proj"
        )
        self.act = GatedActivation(config.hidden_act, size, context, after=self.gate_up_proj)
        self.down_proj = RowParallelLinear(size, config.hidden_size, context, prefix=f"{prefix}.mlp.down_proj")

    def forward(self, positions, residual):
        normed = self.input_layernorm(residual)
        attended = self.self_attn(positions, normed)
        return residual.plus(attended).plus(self.down_proj(self.act(self.gate_up_proj(normed))))


class CohereForCausalLM(DecoderForCausalLM):
    config_class = CohereConfig

    def make_model(self, config, context):
        rotary = make_rotary(
            config.rope_parameters, config.head_size, config.max_position_embeddings, context=context, interleaved=True
        )
        layers = [
            CohereDecoderLayer(config, context, layer_id=layer_id, prefix=f"model.layers.{layer_id}", rotary=rotary)
            for layer_id in range(config.num_hidden_layers)
        ]
        norm = LayerNorm(config.hidden_size, config.rms_norm_eps, context, prefix="model.norm", bias=False)
        return Decoder(config, context, layers=layers, norm=norm)

    def compute_logits(self, hidden_states):
        return super().compute_logits(hidden_states) * self.config.logit_scale


def test_a_model_with_parallel_residuals_is_made_of_these_layers(tmp_path: Path):
    config = transformers.CohereConfig(
        **SIZES,
        num_key_value_heads=2,
        max_position_embeddings=512,
        layer_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    torch.manual_seed(3)
    reference = transformers.CohereForCausalLM(config).eval()
    redraw(reference)
    reference.save_pretrained(tmp_path)
    write_tokenizer(tmp_path, config.vocab_size, config.max_position_embeddings)

    # The architecture is not registered: its checkpoint is opened as that of Llama.
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("CohereForCausalLM", "LlamaForCausalLM"))
    checkpoint = open_checkpoint(tmp_path)
    context = make_context(max_model_len=checkpoint.max_model_len)
    fields = {name: value for name, value in checkpoint.config.items() if name != "logit_scale"}
    model = CohereForCausalLM(fields, context)
    load_weights(model, checkpoint)

    prompts = [[7, 8, 9], [5], [11 + i % 200 for i in range(77)]]
    with torch.inference_mode():
        expected = [reference(torch.tensor([prompt])).logits[0] for prompt in prompts]
    for ours, theirs in zip(LoadedModel(model, checkpoint, context).logits(prompts), expected, strict=True):
        assert (ours - theirs).abs().max() <= 1e-4 * (theirs.max() - theirs.min())
