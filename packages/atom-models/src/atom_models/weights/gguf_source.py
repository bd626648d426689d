"""Tensors of a GGUF file, under Hugging Face names and in their row order, one at a time: as blocks, or dequantized."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from atom_models.checkpoint import Checkpoint, CheckpointError, GGUFFile, GGUFTensor
from atom_models.checkpoint.gguf_architectures import GGUFArchitecture, find_gguf_architecture
from atom_models.quantization.layouts import GGUF_PACKED
from atom_models.weights.dequantize import dequantize

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# Not weights of a layer: the config holds what they say.
_IGNORED = frozenset({"rope_freqs.weight"})
_BLOCK_TENSOR = re.compile(r"blk\.(\d+)\.(.+)")
# The two halves of the matrix that makes keys and values of latents: they are one tensor in the model.
_KEYS_OF_LATENT, _VALUES_OF_LATENT = ".attn_k_b.weight", ".attn_v_b.weight"


@dataclass(frozen=True)
class GGUFSource:
    """The weights of a GGUF file, as the model's layers expect them.

    Attributes:
        architecture: how the converter wrote them.
        config: the checkpoint's.
    """

    file: GGUFFile
    architecture: GGUFArchitecture
    config: Mapping[str, Any]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.num_bytes for tensor in self._tensors())

    def names(self) -> frozenset[str]:
        return frozenset(self.formats())

    def formats(self) -> dict[str, str]:
        """The number format of each tensor, as GGUF calls it, by the tensor's name in the model."""
        return {name: piece.type_name for tensor in self._tensors() for name, piece in self._pieces(tensor)}

    def packed_types(self) -> dict[str, str]:
        """The type of each matrix that can stay in blocks, by its layer's name in the model."""
        return {
            name.removesuffix(".weight"): piece.type_name
            for tensor in self._tensors()
            for name, piece in self._pieces(tensor)
            # Halves of latents have a dimension more, and become one matrix as numbers.
            if len(piece.shape) == 2 and piece.type_name in GGUF_PACKED
        }

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """All tensors as numbers."""
        return self.read(self.formats())

    def read(self, names: Iterable[str], as_blocks: Collection[str] = ()) -> Iterator[tuple[str, torch.Tensor]]:
        """Those tensors in that order: those of `as_blocks` as uint8 ``[rows, bytes of a row]``, others as numbers."""
        pieces = {name: piece for tensor in self._tensors() for name, piece in self._pieces(tensor)}
        for name in names:
            yield name, self._as_the_model_has_it(pieces[name], as_blocks=name in as_blocks)

    def _tensors(self) -> list[GGUFTensor]:
        return [tensor for tensor in self.file.tensors.values() if self._is_read(tensor.name)]

    def _is_read(self, name: str) -> bool:
        block = _BLOCK_TENSOR.fullmatch(name)
        # Blocks behind the last layer predict further tokens.
        if block is not None and int(block[1]) >= self.config["num_hidden_layers"]:
            return False
        # Read together with the other half.
        is_second_half = name.endswith(_VALUES_OF_LATENT) and _other_half(name) in self.file.tensors
        return name not in _IGNORED and not is_second_half

    def _pieces(self, tensor: GGUFTensor) -> Iterator[tuple[str, GGUFTensor]]:
        """Names in the model, and what is read for each: a tensor of all experts comes apart."""
        name = hugging_face_name(tensor.name, self.architecture)
        if "{expert}" not in name:
            yield name, tensor
            return
        if len(tensor.shape) < 2:
            raise CheckpointError(
                f"{self.file.path}: {tensor.name} is {list(tensor.shape)}, not one row for each expert"
            )
        count = tensor.shape[0]
        size = tensor.num_bytes // count
        for expert in range(count):
            piece = GGUFTensor(
                tensor.name, tensor.shape[1:], tensor.type_name, tensor.offset + expert * size, num_bytes=size
            )
            yield name.format(expert=expert), piece

    def _as_the_model_has_it(self, tensor: GGUFTensor, *, as_blocks: bool) -> torch.Tensor:
        values, name = self._blocks(tensor) if as_blocks else self._values(tensor), tensor.name
        if name.endswith(_KEYS_OF_LATENT):
            return join_latent_halves(values, self._values(self._tensor(_other_half(name))))
        if self.architecture.permutes_heads and ".attn_q." in name:
            return unpermute_rows(values, self.config["num_attention_heads"])
        if self.architecture.permutes_heads and ".attn_k." in name:
            return unpermute_rows(values, self.config["num_key_value_heads"])
        if self.architecture.norm_offset and name.endswith("_norm.weight"):
            return values.float() - self.architecture.norm_offset
        return values

    def _blocks(self, tensor: GGUFTensor) -> torch.Tensor:
        return torch.frombuffer(self.file.read(tensor), dtype=torch.uint8).view(tensor.shape[0], -1)

    def _values(self, tensor: GGUFTensor) -> torch.Tensor:
        try:
            return dequantize(self.file.read(tensor), tensor.type_name, tensor.shape)
        except ValueError as error:
            raise CheckpointError(f"{self.file.path}: cannot read {tensor.name}: {error}") from None

    def _tensor(self, name: str) -> GGUFTensor:
        if name not in self.file.tensors:
            raise CheckpointError(f"{self.file.path} does not fit the model: it has no tensor {name}")
        return self.file.tensors[name]


def open_gguf(checkpoint: Checkpoint) -> GGUFSource:
    """The weights of a checkpoint that `open_checkpoint` read from a GGUF file."""
    if checkpoint.gguf is None:
        raise CheckpointError(f"{checkpoint.path} is no GGUF file")
    return GGUFSource(checkpoint.gguf, find_gguf_architecture(checkpoint.gguf), checkpoint.config)


def hugging_face_name(name: str, architecture: GGUFArchitecture) -> str:
    """``"blk.3.attn_q.weight"`` -> ``"model.layers.3.self_attn.q_proj.weight"``; unknown names stay as they are.

    What `{expert}` stands for is left open in tensors of all experts.
    """
    block = _BLOCK_TENSOR.fullmatch(name)
    if block is None:
        stem, _, kind = name.rpartition(".")
        return f"{_TOP[stem]}.{kind}" if stem in _TOP else name
    layer, rest = f"model.layers.{block[1]}", block[2]
    if rest in architecture.tensors:
        return f"{layer}.{architecture.tensors[rest]}"
    stem, _, kind = rest.rpartition(".")
    stem, _, expert = stem.partition(".")
    if expert.isdecimal() and f"{stem}.{{expert}}" in architecture.tensors:
        return f"{layer}.{architecture.tensors[stem + '.{expert}'].format(expert=expert)}.{kind}"
    if expert or stem not in architecture.tensors:
        return name
    return f"{layer}.{architecture.tensors[stem]}.{kind}"


def unpermute_rows(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Undoes the row order of llama GGUFs, in which rotary pairs are neighbors, back to halves."""
    rows = tensor.shape[0]
    if rows % (2 * num_heads):
        raise CheckpointError(f"{rows} rows of queries or keys cannot belong to {num_heads} heads")
    pairs = tensor.reshape(num_heads, rows // num_heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def join_latent_halves(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Keys ``[heads, rank, dim]`` and values ``[heads, dim, rank]`` -> ``[heads * (both dims), rank]``."""
    if keys.ndim != 3 or values.ndim != 3 or (keys.shape[0], keys.shape[1]) != (values.shape[0], values.shape[2]):
        raise CheckpointError(
            f"halves {list(keys.shape)} and {list(values.shape)} of what makes keys and values do not belong together"
        )
    return torch.cat([keys.transpose(1, 2), values], dim=1).flatten(0, 1)


def _other_half(name: str) -> str:
    block = name.split(".attn_", 1)[0]
    return block + (_KEYS_OF_LATENT if name.endswith(_VALUES_OF_LATENT) else _VALUES_OF_LATENT)
