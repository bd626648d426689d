"""Tensors of a GGUF file, under Hugging Face names and in their row order, dequantized one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from atom_models.checkpoint import Checkpoint, CheckpointError, GGUFFile
from atom_models.weights.dequantize import dequantize

# GGUF name of a block's tensor -> Hugging Face name inside the layer
_LLAMA_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LLAMA_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# Not weights of a layer: the config holds what they say.
_IGNORED = frozenset({"rope_freqs.weight"})


@dataclass(frozen=True)
class GGUFSource:
    """The weights of a GGUF file of architecture llama."""

    file: GGUFFile
    num_heads: int
    num_kv_heads: int

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self.file.tensors.values())

    def names(self) -> frozenset[str]:
        return frozenset(hugging_face_name(name) for name in self.file.tensors)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.file.tensors.items():
            if name in _IGNORED:
                continue
            try:
                values = dequantize(self.file.read(tensor), tensor.type_name, tensor.shape)
            except ValueError as error:
                raise CheckpointError(f"{self.file.path}: cannot read {name}: {error}") from None
            if ".attn_q." in name:
                values = unpermute_rows(values, self.num_heads)
            elif ".attn_k." in name:
                values = unpermute_rows(values, self.num_kv_heads)
            yield hugging_face_name(name), values


def open_gguf(checkpoint: Checkpoint) -> GGUFSource:
    """The weights of a checkpoint that `open_checkpoint` read from a GGUF file."""
    if checkpoint.gguf is None:
        raise CheckpointError(f"{checkpoint.path} is no GGUF file")
    config = checkpoint.config
    return GGUFSource(checkpoint.gguf, config["num_attention_heads"], config["num_key_value_heads"])


def hugging_face_name(name: str) -> str:
    """``"blk.3.attn_q.weight"`` -> ``"model.layers.3.self_attn.q_proj.weight"``; unknown names stay as they are."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _LLAMA_BLOCK:
        return f"model.layers.{parts[1]}.{_LLAMA_BLOCK[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _LLAMA_TOP:
        return f"{_LLAMA_TOP[parts[0]]}.{parts[1]}"
    return name


def unpermute_rows(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undoes the row order of llama GGUFs, in which rotary pairs are neighbors, back to halves."""
    rows = tensor.shape[0]
    if rows % (2 * num_heads):
        raise CheckpointError(f"{rows} rows of queries or keys cannot belong to {num_heads} heads")
    pairs = tensor.reshape(num_heads, rows // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
