"""How many weights a model has, and of which kinds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from atom_models.architectures import features
from atom_models.requirements.fields import Config, head_counts, is_sparse, size


@dataclass(frozen=True)
class Count:
    """Numbers of weights; the parts overlap.

    Attributes:
        parameters: all of them.
        linear: matrices of linear layers but the head: what "int8" quantizes.
        linear_outputs: output channels of those.
        experts: matrices of routed experts.
        idle: of the experts' weights, those that a token passes by.
        replicated: what every tensor-parallel rank holds whole.
    """

    parameters: int = 0
    linear: int = 0
    linear_outputs: int = 0
    experts: int = 0
    idle: int = 0
    replicated: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def count_parameters(config: Config, traits: Collection[str]) -> Count:
    """All weights of a model; tied tables count once.

    Args:
        config: the language model's.
        traits: features of the architecture, see `architectures.features`.
    """
    hidden, vocab, layers = (size(config, name) for name in ("hidden_size", "vocab_size", "num_hidden_layers"))
    tables = vocab * hidden * (1 if config.get("tie_word_embeddings") else 2)
    total = Count(parameters=tables) + _vector(hidden)
    attention = _latent_attention(config) if features.LATENT_ATTENTION in traits else _attention(config, traits)
    norms = _vector((4 if features.FOUR_NORMS in traits else 2) * hidden)
    for layer_id in range(layers):
        sparse = features.MIXTURE_OF_EXPERTS in traits and is_sparse(config, layer_id)
        total += attention + norms + (_experts(config, traits) if sparse else _dense(config))
    return total


def _attention(config: Config, traits: Collection[str]) -> Count:
    hidden = size(config, "hidden_size")
    heads, kv_heads, head_dim = head_counts(config)
    q, kv = heads * head_dim, kv_heads * head_dim
    on_output = bool(config.get("attention_bias")) and features.QKV_BIAS not in traits
    on_input = on_output or (features.QKV_BIAS in traits and config.get("attention_bias", True))
    count = _linear(hidden, q + 2 * kv, on_input) + _linear(q, hidden, on_output)
    if config.get("use_qk_norm", True):
        count += _vector(2 * head_dim * (features.QK_NORM in traits))
        count += Count(parameters=(q + kv) * (features.WIDE_QK_NORM in traits))
    return count + Count(parameters=heads * (features.SINKS in traits))


def _latent_attention(config: Config) -> Count:
    hidden, heads, bias = size(config, "hidden_size"), size(config, "num_attention_heads"), config.get("attention_bias")
    rank, rope = size(config, "kv_lora_rank"), size(config, "qk_rope_head_dim")
    nope, value = size(config, "qk_nope_head_dim"), size(config, "v_head_dim")
    count = _replicated(_linear(hidden, rank + rope, bool(bias))) + _vector(rank)
    count += _linear(rank, heads * (nope + value)) + _linear(heads * value, hidden, bool(bias))
    if config.get("q_lora_rank") is None:
        return count + _linear(hidden, heads * (nope + rope))
    q_rank = size(config, "q_lora_rank")
    return (
        count
        + _replicated(_linear(hidden, q_rank, bool(bias)))
        + _vector(q_rank)
        + _linear(q_rank, heads * (nope + rope))
    )


def _dense(config: Config, width: int | None = None) -> Count:
    hidden, bias = size(config, "hidden_size"), bool(config.get("mlp_bias"))
    width = width or size(config, "intermediate_size")
    return _linear(hidden, 2 * width, bias) + _linear(width, hidden, bias)


def _experts(config: Config, traits: Collection[str]) -> Count:
    hidden, width = size(config, "hidden_size"), size(config, "moe_intermediate_size", "intermediate_size")
    experts = size(config, "n_routed_experts", "num_experts", "num_local_experts")
    chosen = size(config, "num_experts_per_tok", "experts_per_token")
    has_bias = features.EXPERT_BIAS in traits
    biases = (2 * width + hidden) * has_bias
    one = 3 * hidden * width
    count = _vector(experts * (hidden + has_bias + (features.CORRECTION_BIAS in traits)))
    count += Count(parameters=experts * (one + biases), experts=experts * one, idle=(experts - chosen) * (one + biases))
    if features.SHARED_EXPERTS in traits and config.get("n_shared_experts"):
        count += _dense(config, width * size(config, "n_shared_experts"))
    return count


def _linear(inputs: int, outputs: int, bias: bool = False) -> Count:
    return Count(parameters=inputs * outputs + outputs * bias, linear=inputs * outputs, linear_outputs=outputs)


def _vector(length: int) -> Count:
    """Norms and routers: each rank has them whole."""
    return Count(parameters=length, replicated=length)


def _replicated(count: Count) -> Count:
    return count + Count(replicated=count.parameters)
