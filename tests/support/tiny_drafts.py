"""Tiny checkpoints with prediction layers: random ones, and ones that are made to guess what their model generates.

The model of `make_agreeing` writes the same tokens for ever: `TinyCycle.next` is the one after each. Its embedding is
turned by one angle from a token to the next, so that all there is to know of the next one is in this one, and in the
hidden state behind it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tiny_models import BOS_ID, EOS_ID, ROPES, SPECIAL_TOKENS, write_tokenizer, write_weights

Reads = Literal["token", "hidden", "context"]

_HIDDEN, _HEAD_DIM, _HEADS, _KV_HEADS, _EXPERTS, _EXPERT_SIZE = 64, 16, 4, 2, 4, 32
# What is added to a layer's name for each of its linears, with outputs and inputs.
_LINEARS = {
    "self_attn.q_proj": (_HEADS * _HEAD_DIM, _HIDDEN),
    "self_attn.k_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
    "self_attn.v_proj": (_KV_HEADS * _HEAD_DIM, _HIDDEN),
    "self_attn.o_proj": (_HIDDEN, _HEADS * _HEAD_DIM),
    "mlp.gate": (_EXPERTS, _HIDDEN),
    **{
        f"mlp.{name}.{matrix}": (_HIDDEN, _EXPERT_SIZE) if matrix == "down_proj" else (_EXPERT_SIZE, _HIDDEN)
        for name in ("shared_experts", *(f"experts.{expert}" for expert in range(_EXPERTS)))
        for matrix in ("gate_proj", "up_proj", "down_proj")
    },
}
_WRITES_TO_THE_RESIDUAL = ("o_proj", "down_proj")


@dataclass(frozen=True)
class TinyCycle:
    """Tokens in a circle, each of which has a turned embedding of the one before.

    Attributes:
        vocab: tokens that there are; the special ones lead into the circle and are not part of it.
    """

    vocab: int = 512
    order: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ids = np.arange(len(SPECIAL_TOKENS), self.vocab)
        np.random.default_rng(7).shuffle(ids)
        object.__setattr__(self, "order", ids.tolist())

    @property
    def next(self) -> dict[int, int]:
        """The token after each of the circle."""
        return dict(zip(self.order, [*self.order[1:], self.order[0]], strict=True))

    def _angles(self) -> np.ndarray:
        """By how much each pair of the embedding turns from a token to the next: different whole parts of a circle."""
        turns = np.random.default_rng(8).choice(np.arange(1, len(self.order)), size=_HIDDEN // 2, replace=False)
        return 2 * math.pi * turns / len(self.order)

    def embedding(self) -> np.ndarray:
        """``[vocab, hidden]``, rows of mean square 1: a norm whose weight is 1 leaves them as they are."""
        angles = np.outer(np.arange(len(self.order)), self._angles())
        rows = np.empty((self.vocab, _HIDDEN), np.float32)
        rows[: len(SPECIAL_TOKENS)] = np.sqrt(2) * np.tile([1, 0], _HIDDEN // 2)
        rows[self.order] = np.sqrt(2) * np.stack([np.cos(angles), np.sin(angles)], axis=-1).reshape(len(angles), -1)
        return rows

    def turn(self) -> np.ndarray:
        """``[hidden, hidden]``: multiplied with the embedding of a token of the circle, it is that of the next one."""
        matrix = np.zeros((_HIDDEN, _HIDDEN), np.float32)
        for pair, angle in enumerate(self._angles()):
            cosine, sine = math.cos(angle), math.sin(angle)
            matrix[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = [[cosine, -sine], [sine, cosine]]
        return matrix

    def head(self, sharpness: float) -> np.ndarray:
        """``[vocab, hidden]``: the most likely token is the one after that whose embedding it is given."""
        return sharpness * self.embedding() @ self.turn()


def make_agreeing(
    folder: str | Path, *, reads: Reads = "token", num_prediction_layers: int = 1, sharpness: float = 1.0, seed: int = 0
) -> Path:
    """Writes a float32 model of `Glm4MoeForCausalLM` whose prediction layers guess what it generates.

    Args:
        reads: what guesses are made from. "token": the token after the position alone, and every guess is right, also
            inside a prompt. "hidden": the hidden state of the position alone, and guesses are right where the tokens
            follow the circle. "context": the model is random but for its embedding, and the prediction layer is its
            one layer: it guesses from the tokens in its own cache, of which the sequence's first is not one, so that
            about one guess of fifteen is wrong, and two of three are if that cache holds anything else.
        num_prediction_layers: all alike.
        sharpness: how sharp the logits are; at 1 a sampled token is the best one, at 0.1 it often is another. "token"
            and "hidden" alone.
        seed: seeds what is random in "context".
    """
    folder, cycle, rng = Path(folder), TinyCycle(), np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    layer = _layer(rng, adds=reads == "context")
    weights = {
        "model.embed_tokens.weight": cycle.embedding(),
        "model.norm.weight": np.ones(_HIDDEN, np.float32),
        "lm_head.weight": _normal(rng, 0.5, cycle.vocab, _HIDDEN) if reads == "context" else cycle.head(sharpness),
    }
    num_layers = 1 if reads == "context" else 2
    for layer_id in range(num_layers + num_prediction_layers):
        weights |= {f"model.layers.{layer_id}.{name}": array.copy() for name, array in layer.items()}
    of_token, of_hidden = np.eye(_HIDDEN, dtype=np.float32), np.zeros((_HIDDEN, _HIDDEN), np.float32)
    if reads == "hidden":
        of_token, of_hidden = of_hidden, cycle.turn()
    for layer_id in range(num_layers, num_layers + num_prediction_layers):
        prefix = f"model.layers.{layer_id}"
        weights |= {f"{prefix}.{norm}.weight": np.ones(_HIDDEN, np.float32) for norm in ("enorm", "hnorm")}
        weights[f"{prefix}.shared_head.norm.weight"] = np.ones(_HIDDEN, np.float32)
        weights[f"{prefix}.eh_proj.weight"] = np.concatenate([of_token, of_hidden], axis=1)
    write_weights(folder, weights)
    _write_json(folder / "config.json", _config(cycle.vocab, num_layers, num_prediction_layers))
    _write_json(folder / "generation_config.json", {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": 0})
    write_tokenizer(folder, cycle.vocab)
    return folder


def make_predicting(family: str, folder: str | Path, *, num_prediction_layers: int = 1, **overrides: Any) -> Path:
    """Writes a random checkpoint of a family of `tiny_architectures` with prediction layers; returns its folder."""
    from tiny_architectures import make_tiny

    return make_tiny(family, folder, num_prediction_layers=num_prediction_layers, **overrides)


def let_agree(folder: Path, *, norm_offset: float = 0.0) -> Path:
    """Makes the model of a folder with untied tables write `TinyCycle`, and its prediction layer guess that.

    Its vocabulary must have 512 tokens and its hidden states 64 elements. No layer adds anything to the residual.

    Args:
        norm_offset: what the model adds to the weights of norms.
    """
    cycle, ones = TinyCycle(), np.full(_HIDDEN, 1 - norm_offset, np.float32)
    of_token, of_hidden = np.eye(_HIDDEN, dtype=np.float32), np.zeros((_HIDDEN, _HIDDEN), np.float32)
    last_parts = {"enorm", "hnorm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"}

    def agree(weights: dict[str, np.ndarray]) -> None:
        for name, array in weights.items():
            *_, parent, part = ("", *name.removesuffix(".weight").split("."))
            if part in ("o_proj", "out_proj", "down_proj"):
                weights[name] = np.zeros_like(array)
            elif part == "embed_tokens":
                weights[name] = cycle.embedding()
            elif part in ("lm_head", "head"):
                weights[name] = cycle.head(1.0)
            elif part in ("eh_proj", "fc"):
                weights[name] = np.concatenate([of_token, of_hidden], axis=1)
            elif part in last_parts or (part == "norm" and parent in ("model", "mtp", "shared_head")):
                weights[name] = ones

    rewrite_weights(folder, agree)
    return folder


def rewrite_weights(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    """Lets `change` edit the weights of a folder with one file."""
    from safetensors.numpy import load_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    write_weights(folder, weights)


def rewrite_config(folder: Path, **changes: Any) -> None:
    """Sets fields of a folder's `config.json`."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    _write_json(folder / "config.json", config | changes)


def _config(vocab: int, num_layers: int, num_prediction_layers: int) -> dict[str, Any]:
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "dtype": "float32",
        "vocab_size": vocab,
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _EXPERT_SIZE,
        "num_hidden_layers": num_layers,
        "num_nextn_predict_layers": num_prediction_layers,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD_DIM,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "use_qk_norm": False,
        "tie_word_embeddings": False,
        "n_routed_experts": _EXPERTS,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": _EXPERT_SIZE,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 0,
        "rope_parameters": ROPES["default"],
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": 0,
    }


def _layer(rng: np.random.Generator, *, adds: bool) -> dict[str, np.ndarray]:
    """A layer's weights; one that adds nothing to the residual has zeros where it would write.

    Attention writes less than the experts, so that one token of the context decides little, and all of it much.
    """
    layer = {}
    for name, shape in _LINEARS.items():
        std = 0.05 if name.endswith("o_proj") else 0.15
        writes = name.endswith(_WRITES_TO_THE_RESIDUAL)
        layer[f"{name}.weight"] = np.zeros(shape, np.float32) if writes and not adds else _normal(rng, std, *shape)
    layer["mlp.gate.e_score_correction_bias"] = np.zeros(_EXPERTS, np.float32)
    norms = ("input_layernorm", "post_attention_layernorm")
    return layer | {f"{name}.weight": np.ones(_HIDDEN, np.float32) for name in norms}


def _normal(rng: np.random.Generator, std: float, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(std)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
