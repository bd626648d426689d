"""Names of XLM-R's weights as Jina publishes them, in its own code's spelling and in that of `transformers`."""

from __future__ import annotations

import re

from atom_models.checkpoint.weight_names import OwnNames

_LAYER = re.compile(r"(?:encoder\.)?layers\.(?P<layer_id>\d+)\.(?P<part>.+)")
_QUERY, _KEY, _VALUE = (f"attention.self.{part}" for part in ("query", "key", "value"))
# Parts of a layer, by their names there: those here are BERT's.
_PARTS = {
    "mixer.Wqkv": (_QUERY, _KEY, _VALUE),
    "mixer.out_proj": ("attention.output.dense",),
    "norm1": ("attention.output.LayerNorm",),
    "norm2": ("output.LayerNorm",),
    "self_attn.q_proj": (_QUERY,),
    "self_attn.k_proj": (_KEY,),
    "self_attn.v_proj": (_VALUE,),
    "self_attn.o_proj": ("attention.output.dense",),
    "post_attention_layernorm": ("attention.output.LayerNorm",),
    "post_mlp_layernorm": ("output.LayerNorm",),
    "mlp.fc1": ("intermediate.dense",),
    "mlp.fc2": ("output.dense",),
}
# A matrix that the adapters of tasks are added to, which lie beside it.
_ADAPTED, _OF_TASKS = ".parametrizations.weight.original", ".parametrizations.weight.0."


def own_modules_of_jina(module: str) -> tuple[str, ...]:
    """The names here of a module; several have the rows of one that is packed. One of another spelling stays."""
    found = _LAYER.fullmatch(module)
    if found is None or found["part"] not in _PARTS:
        return (module.replace("emb_ln", "embeddings.LayerNorm"),)
    return tuple(f"encoder.layer.{found['layer_id']}.{part}" for part in _PARTS[found["part"]])


def own_names_of_jina(name: OwnNames) -> OwnNames:
    """The names here of a tensor, whose name has lost the prefix of the model; None for matrices of tasks."""
    if not isinstance(name, str) or _OF_TASKS in name:
        return None
    module, _, last = name.replace(_ADAPTED, ".weight").rpartition(".")
    own = tuple(f"{one}.{last}" for one in own_modules_of_jina(module))
    return own[0] if len(own) == 1 else own
