"""Tiny EAGLE and EAGLE-3 heads: random ones in each layout of publishers, and ones that guess what their target writes.

A head has a folder of its own beside its target's. `head_outputs` is what it computes, in plain torch by the papers'
formulas.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional

from tiny_drafts import TinyCycle, rewrite_weights
from tiny_models import make_tiny_llama, write_weights

Layout = Literal["midlayer", "layers", "model.layers", "speculators"]
Method = Literal["eagle", "eagle3"]

_CONFIG = {
    "model_type": "llama",
    "dtype": "float32",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
_ARCHITECTURE = {"eagle": "EagleLlamaForCausalLM", "eagle3": "LlamaForCausalLMEagle3"}
# Fields that stay outside of the format's `transformer_layer_config`.
_OF_THE_HEAD = (
    *("draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
    "eagle_aux_hidden_state_layer_ids",
)


def make_head(
    folder: str | Path,
    *,
    method: Method = "eagle3",
    vocab: int = 512,
    target_hidden: int = 64,
    layout: Layout = "midlayer",
    own_embedding: bool = False,
    fc_bias: bool = False,
    seed: int = 0,
    **fields: Any,
) -> Path:
    """Writes a random float32 head and returns its folder.

    Args:
        vocab, target_hidden: sizes of the target.
        layout: names of the tensors, and the format of the config.
        own_embedding: it stores a table.
        fc_bias: as the first heads had it.
        fields: fields of the config; `draft_vocab_size` below `vocab` makes it draft some tokens alone.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {**_CONFIG, "architectures": [_ARCHITECTURE[method]], "vocab_size": vocab}
    if method == "eagle3":
        config["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3]
    config |= fields
    weights = random_head_weights(config, method, target_hidden=target_hidden, fc_bias=fc_bias, seed=seed)
    if own_embedding:
        size = config["hidden_size"]
        weights["embed_tokens.weight"] = np.random.default_rng(seed + 1).standard_normal((vocab, size), np.float32)
    write_head(folder, config, weights, layout)
    return folder


def write_head(folder: Path, config: dict[str, Any], weights: dict[str, np.ndarray], layout: Layout) -> None:
    """Writes a head whose tensors are named as in ``"layers"``."""
    folder.mkdir(parents=True, exist_ok=True)
    if layout == "speculators":
        layer = {name: value for name, value in config.items() if name not in ("architectures", *_OF_THE_HEAD)}
        verifier = {"name_or_path": "a/target", "architectures": ["LlamaForCausalLM"]}
        config = {
            **{name: config[name] for name in _OF_THE_HEAD if name in config},
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_version": "0.9.0",
            "speculators_config": {"algorithm": "eagle3", "proposal_methods": [], "verifier": verifier},
            "transformer_layer_config": layer,
        }
    elif "eagle_aux_hidden_state_layer_ids" in config:
        config = dict(config)
        ids = config.pop("eagle_aux_hidden_state_layer_ids")
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True}
    before = {"midlayer": ("layers.0.", "midlayer."), "model.layers": ("", "model.")}.get(layout, ("", ""))
    named = {
        name.replace(before[0], before[1], 1) if before[0] else before[1] + name: value
        for name, value in weights.items()
    }
    write_weights(folder, named)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def random_head_weights(
    config: dict[str, Any], method: Method, *, target_hidden: int, fc_bias: bool = False, seed: int = 0
) -> dict[str, np.ndarray]:
    """The tensors of a head, named as in the layout ``"layers"``."""
    rng, size = np.random.default_rng(seed), config["hidden_size"]
    head_dim, inner = config["head_dim"], config["intermediate_size"]
    q_size, kv_size = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    is_third, num_aux = method == "eagle3", len(config.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0))

    def normal(*shape: int, std: float = 0.1, middle: float = 0.0) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(std) + np.float32(middle)

    def norm(width: int) -> np.ndarray:
        return normal(width, middle=1.0)

    weights = {"fc.weight": normal(size, num_aux * target_hidden if is_third else 2 * size)}
    if fc_bias:
        weights["fc.bias"] = normal(size, std=0.5)
    for layer_id in range(config["num_hidden_layers"]):
        read = 2 * size if is_third and layer_id == 0 else size
        linears = {"q_proj": (q_size, read), "k_proj": (kv_size, read), "v_proj": (kv_size, read)}
        layer = {f"self_attn.{name}.weight": normal(*shape) for name, shape in linears.items()}
        if config["attention_bias"]:
            layer |= {f"self_attn.{name}.bias": normal(rows, std=0.5) for name, (rows, _) in linears.items()}
            layer["self_attn.o_proj.bias"] = normal(size, std=0.5)
        if config["model_type"] == "qwen3":
            layer |= {f"self_attn.{name}.weight": norm(head_dim) for name in ("q_norm", "k_norm")}
        layer["self_attn.o_proj.weight"] = normal(size, q_size)
        layer |= {f"mlp.{name}.weight": normal(inner, size) for name in ("gate_proj", "up_proj")}
        layer["mlp.down_proj.weight"] = normal(size, inner)
        layer["post_attention_layernorm.weight"] = norm(size)
        if is_third or layer_id > 0:
            layer["input_layernorm.weight"] = norm(size)
        if is_third and layer_id == 0:
            layer["hidden_norm.weight"] = norm(size)
        weights |= {f"layers.{layer_id}.{name}": array for name, array in layer.items()}
    if not is_third:
        return weights
    if config.get("norm_before_fc"):
        weights["input_norm.weight"] = norm(num_aux * target_hidden)
    if config.get("fc_norm"):
        weights |= {f"fc_norm.{index}.weight": norm(target_hidden) for index in range(num_aux)}
    vocab, drafted = config["vocab_size"], config.get("draft_vocab_size") or config["vocab_size"]
    weights |= {"norm.weight": norm(size), "lm_head.weight": normal(drafted, size, std=0.2)}
    if drafted != vocab:
        ids = np.sort(rng.choice(vocab, drafted, replace=False))
        weights["d2t"] = (ids - np.arange(drafted)).astype(np.int64)
        weights["t2d"] = np.isin(np.arange(vocab), ids)
    return weights


def make_agreeing_head(folder: str | Path, method: Method = "eagle3") -> tuple[Path, Path]:
    """Writes a Llama that follows `TinyCycle` and a head that guesses it, always; returns both folders.

    The head of EAGLE-3 drafts all tokens of the circle, with other ids than the target's.
    """
    target, head, cycle = Path(folder) / "target", Path(folder) / "head", TinyCycle()
    make_tiny_llama(target, num_layers=4, vocab=cycle.vocab)

    def follow(weights: dict[str, np.ndarray]) -> None:
        for name, value in weights.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weights[name] = np.zeros_like(value)
        weights["model.embed_tokens.weight"], weights["lm_head.weight"] = cycle.embedding(), cycle.head(1.0)
        weights["model.norm.weight"] = np.ones_like(weights["model.norm.weight"])

    rewrite_weights(target, follow)
    one, none = np.eye(64, dtype=np.float32), np.zeros((64, 64), np.float32)
    is_third = method == "eagle3"
    fields: dict[str, Any] = {"draft_vocab_size": len(cycle.order)} if is_third else {}
    make_head(head, method=method, num_key_value_heads=4, attention_bias=True, rms_norm_eps=1e-6, **fields)

    def agree(weights: dict[str, np.ndarray]) -> None:
        for name, value in weights.items():
            if "norm" in name:
                weights[name] = np.ones_like(value)
            elif "midlayer" in name or "layers.0" in name:
                weights[name] = np.zeros_like(value)
        if not is_third:
            weights["fc.weight"] = np.concatenate([one, none], axis=1)
            return
        weights["fc.weight"] = np.concatenate([one, none, none], axis=1)
        # Every query is the key of its own position, turned as far, and far from all others.
        for name in ("q_proj", "k_proj"):
            weights[f"midlayer.self_attn.{name}.bias"] = np.tile(np.repeat([40, 0], 8), 4).astype(np.float32)
        # So attention puts the next token's embedding in the place of this one's.
        weights["midlayer.self_attn.v_proj.weight"] = np.concatenate([one, -one], axis=1)
        weights["midlayer.self_attn.o_proj.weight"] = one
        ids = np.array(cycle.order)
        weights["lm_head.weight"] = cycle.head(1.0)[ids]
        weights["d2t"] = ids - np.arange(len(ids))

    rewrite_weights(head, agree)
    return target, head


class HeadReference:
    """A head by the papers' formulas, for one sequence and without a cache.

    Args:
        config: what `make_head` wrote, its fields side by side.
        weights: named as in the layout ``"layers"``; the target's tables under ``target.embed_tokens.weight`` and
            ``target.lm_head.weight``.
    """

    def __init__(self, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
        self.config, self.weights = config, weights
        self.is_third = "layers.0.hidden_norm.weight" in weights

    def features(self, hidden_states: torch.Tensor, streams: list[torch.Tensor]) -> torch.Tensor:
        """What the head reads: hidden states, or the streams that the config names; what enters layer 0 comes first."""
        if not self.is_third:
            return hidden_states
        ids = self.config["eagle_aux_hidden_state_layer_ids"]
        aux = [streams[layer_id + (ids[0] == 1)] for layer_id in ids]
        if self.config.get("fc_norm"):
            aux = [self._norm(each, f"fc_norm.{index}") for index, each in enumerate(aux)]
        x = torch.cat(aux, dim=-1)
        return self._linear(self._norm(x, "input_norm") if self.config.get("norm_before_fc") else x, "fc")

    def outputs(self, features: torch.Tensor, ids: list[int]) -> torch.Tensor:
        """What is fed back, at each position."""
        table = self.weights.get("embed_tokens.weight", self.weights["target.embed_tokens.weight"])
        embeds = table[torch.tensor(ids)]
        if self.is_third:
            hidden = self._norm(features, "layers.0.hidden_norm")
            x = torch.cat([self._norm(embeds, "layers.0.input_layernorm"), hidden], dim=-1)
            residual = hidden if self.config.get("norm_before_residual") else features
        else:
            x = residual = self._linear(torch.cat([embeds, features], dim=-1), "fc")
        for layer_id in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer_id}"
            if layer_id > 0:
                x = self._norm(residual, f"{prefix}.input_layernorm")
            residual = residual + self._attention(x, f"{prefix}.self_attn")
            y = self._norm(residual, f"{prefix}.post_attention_layernorm")
            gate = functional.silu(self._linear(y, f"{prefix}.mlp.gate_proj"))
            y = gate * self._linear(y, f"{prefix}.mlp.up_proj")
            residual = residual + self._linear(y, f"{prefix}.mlp.down_proj")
        return self._norm(residual, "norm") if self.config.get("norm_output") else residual

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        if self.is_third and not self.config.get("norm_output"):
            outputs = self._norm(outputs, "norm")
        head = self.weights.get("lm_head.weight", self.weights["target.lm_head.weight"])
        return self.config.get("logit_scale", 1.0) * outputs @ head.T

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return x * scale * self.weights[f"{name}.weight"]

    def _attention(self, x: torch.Tensor, name: str) -> torch.Tensor:
        heads, size = self.config["num_attention_heads"], self.config["head_dim"]
        q, k, v = (self._linear(x, f"{name}.{part}_proj").view(len(x), -1, size) for part in "qkv")
        if self.config["model_type"] == "qwen3":
            q, k = self._norm(q, f"{name}.q_norm"), self._norm(k, f"{name}.k_norm")
        q, k = self._turned(q), self._turned(k)
        k, v = (each.repeat_interleave(heads // each.shape[1], dim=1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * size**-0.5
        later = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(later, -torch.inf).softmax(-1), v)
        return self._linear(mixed.reshape(len(x), -1), f"{name}.o_proj")

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        rates = self.config["rope_parameters"]["rope_theta"] ** (-torch.arange(half) / half)
        angles = (torch.arange(len(x))[:, None] * rates)[:, None]
        left, right = x[..., :half], x[..., half:]
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)
