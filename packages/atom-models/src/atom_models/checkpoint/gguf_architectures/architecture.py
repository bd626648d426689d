"""What a table of this folder holds: how llama.cpp's converter writes one architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from atom_models.checkpoint.gguf_header import GGUFHeader

ATTENTION = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
    }
)
HEAD_NORMS = MappingProxyType({"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"})
MLP = MappingProxyType({"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"})
# `{expert}`: the tensor's first dimension are the experts, and the model names each by itself.
EXPERTS = MappingProxyType(
    {
        "ffn_gate_inp": "mlp.gate",
        "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
        "ffn_up_exps": "mlp.experts.{expert}.up_proj",
        "ffn_down_exps": "mlp.experts.{expert}.down_proj",
    }
)
SHARED_EXPERTS = MappingProxyType(
    {
        "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
        "ffn_up_shexp": "mlp.shared_experts.up_proj",
        "ffn_down_shexp": "mlp.shared_experts.down_proj",
    }
)


CORRECTION_BIAS = MappingProxyType({"exp_probs_b.bias": "mlp.gate.e_score_correction_bias"})
# The same experts as Mixtral and MiniMax name them.
BLOCK_SPARSE_EXPERTS = MappingProxyType(
    {
        "ffn_gate_inp": "block_sparse_moe.gate",
        "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
        "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
        "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
    }
)


@dataclass(frozen=True, kw_only=True)
class GGUFArchitecture:
    """One value of `general.architecture`.

    Attributes:
        model_class, model_type: `architectures` and `model_type` of `config.json`.
        tensors: name of a tensor in its block -> name in the model's layer. Names are without ``.weight`` and
            ``.bias``, which stay as they are, but where the model has no such ending: those keys have theirs.
        numbers: field of `config.json` -> key of the header, which must be there.
        scoring: how routers of the published models make scores; a header that says otherwise is refused.
        fields: the header -> further fields of `config.json` beyond those that all architectures share, or instead of
            them (None: the family has no such field).
        permutes_heads: rows of queries and keys lie so that rotary pairs are neighbors; the model wants halves.
        norm_offset: what the converter added to the weights of norms.
    """

    model_class: str
    model_type: str
    tensors: Mapping[str, str]
    numbers: Mapping[str, str] = field(default_factory=dict)
    scoring: str | None = None
    fields: Callable[[GGUFHeader], dict[str, Any]] | None = None
    permutes_heads: bool = False
    norm_offset: float = 0.0

    def config(self, header: GGUFHeader) -> dict[str, Any]:
        """Fields of `config.json` that this architecture has of its own.

        Raises:
            CheckpointError: a number is missing, or routers make scores in another way.
        """
        if self.scoring is not None:
            header.require_scoring(self.scoring)
        named = {"architectures": [self.model_class], "model_type": self.model_type}
        return named | header.numbers(**self.numbers) | (self.fields(header) if self.fields else {})
