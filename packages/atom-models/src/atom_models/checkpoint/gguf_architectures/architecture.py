"""What a table of this folder holds: how llama.cpp's converter writes one architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class GGUFArchitecture:
    """One value of `general.architecture`.

    Attributes:
        config: the header -> fields of `config.json` beyond those that all architectures share, or instead of them
            (None: the family has no such field); `architectures` names the model's class.
        tensors: name of a tensor in its block -> name in the model's layer. Names are without ``.weight`` and
            ``.bias``, which stay as they are, but where the model has no such ending: those keys have theirs.
        permutes_heads: rows of queries and keys lie so that rotary pairs are neighbors; the model wants halves.
        norm_offset: what the converter added to the weights of norms.
    """

    config: Callable[[GGUFHeader], dict[str, Any]]
    tensors: Mapping[str, str]
    permutes_heads: bool = False
    norm_offset: float = 0.0
