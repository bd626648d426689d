"""`gemma3`: Gemma 3, the language model. The converter adds one to the weights of norms."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.gguf_architectures.architecture import ATTENTION, HEAD_NORMS, MLP, GGUFArchitecture
from atom_models.checkpoint.gguf_header import GGUFHeader
from atom_models.checkpoint.layer_types import FULL, SLIDING

# Facts of the published models that the converter leaves out.
_PATTERN = 6
_LAYERS_OF_27B = 62
_GLOBAL_ROPE_THETA, _LOCAL_ROPE_THETA = 1_000_000.0, 10_000.0


def _fields(header: GGUFHeader) -> dict[str, Any]:
    layers, heads = header.number("block_count"), header.number("attention.head_count")
    head_dim = header.number("attention.key_length", 256)
    window = header.optional_number("attention.sliding_window")
    return {
        "hidden_act": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": head_dim,
        # The largest model scales by hidden size over heads, which is not its width of a head.
        "query_pre_attn_scalar": header.number("embedding_length") // heads if layers == _LAYERS_OF_27B else head_dim,
        "sliding_window": window,
        "layer_types": _layer_types(header, layers) if window else [FULL] * layers,
        "final_logit_softcapping": header.optional_number("final_logit_softcapping"),
        "rope_parameters": {"rope_theta": header.number("rope.freq_base", _GLOBAL_ROPE_THETA)},
        "rope_local_base_freq": header.number("rope.freq_base_swa", _LOCAL_ROPE_THETA),
    }


def _layer_types(header: GGUFHeader, num_layers: int) -> list[str]:
    """The type of each layer: every sixth is full, or as the header says (a number, or a flag for each layer)."""
    pattern = header.get(key := "attention.sliding_window_pattern", _PATTERN)
    if isinstance(pattern, list):
        return [SLIDING if slides else FULL for slides in pattern]
    if header.number(key, _PATTERN) < 1:
        raise CheckpointError(f"{header.file.path}: gemma3.{key} is {pattern}, less than 1")
    return [FULL if (layer_id + 1) % pattern == 0 else SLIDING for layer_id in range(num_layers)]


GEMMA3 = GGUFArchitecture(
    model_class="Gemma3ForCausalLM",
    model_type="gemma3_text",
    tensors={
        **ATTENTION,
        **HEAD_NORMS,
        **MLP,
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
    fields=_fields,
    norm_offset=1.0,
)
