"""Which layers of a mixture have experts, by the fields of its config."""

from __future__ import annotations

from atom_models.architectures.qwen3_moe import Qwen3MoeConfig

SIZES = {
    "vocab_size": 8,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 6,
    "num_attention_heads": 1,
    "num_experts_per_tok": 1,
    "moe_intermediate_size": 8,
}


def layers_with_experts(config) -> list[int]:
    return [layer_id for layer_id in range(6) if config.experts_of(layer_id) is not None]


def test_qwen_counts_its_steps_from_one_and_leaves_out_layers_by_name():
    def config(**fields):
        return Qwen3MoeConfig(**SIZES, num_experts=4, **fields)

    assert layers_with_experts(config()) == [0, 1, 2, 3, 4, 5]
    assert layers_with_experts(config(decoder_sparse_step=2)) == [1, 3, 5]
    assert layers_with_experts(config(decoder_sparse_step=3, mlp_only_layers=[1, 5])) == [2]
