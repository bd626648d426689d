"""GGUF files of tiny checkpoints, as llama.cpp's convert_hf_to_gguf.py would write them.

Names of tensors are the gguf library's own. Taken from the converter (as of 2026-08) for each architecture: which keys
it writes and which facts it leaves out; rotary pairs of `llama` as neighbors; one added to Gemma's norms; experts
stacked; the two halves of kv_b_proj; gate and up of GPT-OSS apart, with outputs before inputs; layers that predict
further tokens dropped, or kept as blocks behind the last. With the converter itself, its files of the tiny checkpoints
came out the same byte for byte in every tensor, and in every key that is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize, quantize
from safetensors.numpy import load_file

from atom_models import open_checkpoint

Weights = dict[str, np.ndarray]
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": gguf.MODEL_ARCH.DEEPSEEK2,
    "kimi_k2": gguf.MODEL_ARCH.DEEPSEEK2,
    "glm4_moe_lite": gguf.MODEL_ARCH.DEEPSEEK2,
    "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
    "minimax_m2": gguf.MODEL_ARCH.MINIMAXM2,
}
# Stay in float32 whatever the file's format.
_PLAIN = ("ffn_gate_inp", "norm", "exp_probs_b", "attn_sinks")


def write_gguf(
    folder: str | Path,
    path: str | Path,
    *,
    quant: str = "F32",
    quantized: str = "",
    others: Mapping[str, str] | None = None,
    dequantized: bool = False,
    latent_halves: bool = True,
    metadata: Mapping[str, Any] | None = None,
    without: tuple[str, ...] = (),
) -> Path:
    """Writes the checkpoint in `folder` to `path`.

    Args:
        quant: format of matrices.
        quantized: only of those whose names hold this text.
        others: formats of matrices whose names hold a text, by that text.
        dequantized: in float32, the numbers that come out of `quant`.
        latent_halves: False writes kv_b_proj and the sizes of a head as converters before 2025-04 did.
        metadata: further keys, or other values.
        without: keys to leave out.
    """
    config = dict(open_checkpoint(folder).config)
    architecture = ARCHITECTURES[config["model_type"]]
    keys = _keys(config, gguf.MODEL_ARCH_NAMES[architecture], latent_halves) | _tokenizer_keys(Path(folder))
    weights = load_file(Path(folder) / "model.safetensors")
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    for key, value in {**keys, **(metadata or {})}.items():
        if key not in without and value is not None:
            _add(writer, key, value)
    for name, array in _tensors(weights, config, architecture, latent_halves):
        own = [kind for text, kind in (others or {}).items() if text in name]
        _add_tensor(writer, name, array, own[0] if own else quant if quantized in name else "F32", dequantized)
    if config["rope_parameters"].get("rope_type") == "llama3":
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(config["rope_parameters"], head_dim))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Path(path)


def _keys(config: dict[str, Any], name: str, latent_halves: bool) -> dict[str, Any]:
    get = config.get
    keys: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.key_length": get("head_dim"),
        "attention.value_length": get("head_dim"),
        "expert_count": get("num_local_experts") or get("num_experts") or get("n_routed_experts"),
        "expert_used_count": get("num_experts_per_tok"),
        "expert_group_count": get("n_group"),
        "expert_group_used_count": get("topk_group"),
        "expert_gating_func": {"softmax": 1, "sigmoid": 2}.get(str(get("scoring_func"))),
        **_rope_keys(config["rope_parameters"]),
    }
    keys |= _OWN_KEYS[name](config)
    if name == "deepseek2" and not latent_halves:
        keys |= {
            "attention.head_count_kv": config["num_attention_heads"],
            "attention.key_length": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
            "attention.value_length": config["v_head_dim"],
            "attention.key_length_mla": None,
            "attention.value_length_mla": None,
        }
    return {f"{name}.{key}": value for key, value in keys.items()}


def _rope_keys(rope: dict[str, Any]) -> dict[str, Any]:
    local = rope.get("sliding_attention", {})
    rope = rope.get("full_attention", rope)
    keys = {"rope.freq_base": float(rope["rope_theta"])}
    if local:
        keys["rope.freq_base_swa"] = float(local["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        keys |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": float(rope["factor"])}
    if rope["rope_type"] == "yarn":
        keys |= {
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_beta_fast": rope.get("beta_fast"),
            "rope.scaling.yarn_beta_slow": rope.get("beta_slow"),
        }
    return keys


def _llama3_divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """What Llama 3.1 divides frequencies by: nothing below a wavelength, the factor above another, a blend between."""
    frequencies = rope["rope_theta"] ** -(np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim))
    turns = rope["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    share = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - share) / rope["factor"] + share)).astype(np.float32)


def _llama(config: dict[str, Any]) -> dict[str, Any]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {"vocab_size": config["vocab_size"], "rope.dimension_count": head_dim}


def _qwen3moe(config: dict[str, Any]) -> dict[str, Any]:
    return {"expert_feed_forward_length": config["moe_intermediate_size"]}


def _gemma3(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention.sliding_window": config["sliding_window"],
        "rope.freq_base_swa": config.get("rope_local_base_freq"),
        "final_logit_softcapping": config.get("final_logit_softcapping"),
    }


def _gpt_oss(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention.sliding_window": config["sliding_window"],
        "expert_feed_forward_length": config["intermediate_size"],
    }


def _fine_grained(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "leading_dense_block_count": config["first_k_dense_replace"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_shared_count": config["n_shared_experts"],
        "expert_weights_scale": float(config["routed_scaling_factor"]),
    }


def _deepseek2(config: dict[str, Any]) -> dict[str, Any]:
    mscale = config["rope_parameters"].get("mscale_all_dim")
    return _fine_grained(config) | {
        "attention.head_count_kv": 1,
        "vocab_size": config["vocab_size"],
        "attention.q_lora_rank": config.get("q_lora_rank"),
        "attention.kv_lora_rank": config["kv_lora_rank"],
        "attention.key_length": config["kv_lora_rank"] + config["qk_rope_head_dim"],
        "attention.value_length": config["kv_lora_rank"],
        "attention.key_length_mla": config["qk_nope_head_dim"] + config["qk_rope_head_dim"],
        "attention.value_length_mla": config["v_head_dim"],
        "expert_weights_norm": True if config["norm_topk_prob"] else None,
        "rope.dimension_count": config["qk_rope_head_dim"],
        "rope.scaling.yarn_log_multiplier": None if mscale is None else 0.1 * mscale,
    }


def _glm4moe(config: dict[str, Any]) -> dict[str, Any]:
    rotary = int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"])
    return _fine_grained(config) | {
        "block_count": config["num_hidden_layers"] + config["num_nextn_predict_layers"],
        "nextn_predict_layers": config["num_nextn_predict_layers"],
        "rope.dimension_count": rotary,
        "expert_gating_func": 2,
        "expert_weights_norm": config["norm_topk_prob"],
    }


def _minimax(config: dict[str, Any]) -> dict[str, Any]:
    return {"expert_feed_forward_length": config["intermediate_size"], "rope.dimension_count": config["rotary_dim"]}


_OWN_KEYS = {
    "llama": _llama,
    "qwen2": lambda config: {},
    "qwen3": lambda config: {},
    "qwen3moe": _qwen3moe,
    "gemma3": _gemma3,
    "gpt-oss": _gpt_oss,
    "deepseek2": _deepseek2,
    "glm4moe": _glm4moe,
    "minimax-m2": _minimax,
}


def _tokenizer_keys(folder: Path) -> dict[str, Any]:
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    vocab = tokenizer["model"]["vocab"] | special
    tokens = sorted(vocab, key=vocab.__getitem__)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [
            merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]
        ],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(encoding="utf-8"),
    }


def _tensors(
    weights: Weights, config: dict[str, Any], architecture: gguf.MODEL_ARCH, latent_halves: bool
) -> Iterator[tuple[str, np.ndarray]]:
    layers = config["num_hidden_layers"]
    if architecture == gguf.MODEL_ARCH.DEEPSEEK2:
        weights = {name: array for name, array in weights.items() if (_layer_of(name) or 0) < layers}
    weights = _stacked_experts(weights)
    names = gguf.get_tensor_name_map(architecture, layers + 1)
    for name, array in weights.items():
        for new_name, new_array in _changed(name, array, config, architecture, latent_halves):
            mapped = names.get_name(new_name, try_suffixes=(".weight", ".bias"))
            assert mapped is not None, f"the gguf library has no name for {new_name}"
            yield mapped, np.ascontiguousarray(new_array)


def _layer_of(name: str) -> int | None:
    match = re.match(r"model\.layers\.(\d+)\.", name)
    return int(match[1]) if match else None


def _stacked_experts(weights: Weights) -> Weights:
    """Experts that lie one by one, as one tensor where the first of them was."""
    single = re.compile(r"(.+\.experts)\.(\d+)\.(\w+\.weight)")
    stacked: Weights = {}
    for name, array in weights.items():
        match = single.fullmatch(name)
        if match is None:
            stacked[name] = array
        elif match[2] == "0":
            count = sum(other.startswith(f"{match[1]}.") and other.endswith(match[3]) for other in weights)
            experts = [weights[f"{match[1]}.{expert}.{match[3]}"] for expert in range(count)]
            stacked[_stacked_name(f"{match[1]}.{match[3]}")] = np.stack(experts)
    return stacked


def _stacked_name(name: str) -> str:
    """w1, w2, w3 of Mixtral and MiniMax go under the names that the library has for stacks of them."""
    name = re.sub(r"model\.layers\.(\d+)\.block_sparse_moe", r"model.layers.\1.mlp", name)
    return name.replace(".w1.", ".gate_proj.").replace(".w2.", ".down_proj.").replace(".w3.", ".up_proj.")


def _changed(
    name: str, array: np.ndarray, config: dict[str, Any], architecture: gguf.MODEL_ARCH, latent_halves: bool
) -> list[tuple[str, np.ndarray]]:
    if name.endswith("e_score_correction_bias"):
        return [(name.replace("e_score_correction_bias", "e_score_correction.bias"), array)]
    if architecture == gguf.MODEL_ARCH.LLAMA and ".q_proj." in name:
        return [(name, permute_rows(array, config["num_attention_heads"]))]
    if architecture == gguf.MODEL_ARCH.LLAMA and ".k_proj." in name:
        return [(name, permute_rows(array, config["num_key_value_heads"]))]
    if architecture == gguf.MODEL_ARCH.GEMMA3 and name.endswith("norm.weight"):
        return [(name, array + np.float32(1))]
    if architecture == gguf.MODEL_ARCH.GPT_OSS:
        return _gpt_oss_tensors(name, array)
    if name.endswith("kv_b_proj.weight") and latent_halves:
        heads, keys = config["num_attention_heads"], config["qk_nope_head_dim"]
        both = array.reshape(heads, -1, array.shape[-1])
        return [
            (name.replace("kv_b_proj", "k_b_proj"), both[:, :keys].swapaxes(1, 2)),
            (name.replace("kv_b_proj", "v_b_proj"), both[:, keys:]),
        ]
    return [(name, array)]


def _gpt_oss_tensors(name: str, array: np.ndarray) -> list[tuple[str, np.ndarray]]:
    if name.endswith("sinks"):
        return [(name + ".weight", array)]
    if ".mlp.experts." not in name:
        return [(name, array)]
    kind = ".bias" if name.endswith("_bias") else ".weight"
    stem = name.removesuffix("_bias")
    array = array if kind == ".bias" else array.swapaxes(1, 2)
    if stem.endswith("down_proj"):
        return [(stem + kind, array)]
    stem = stem.removesuffix("gate_up_proj")
    return [(f"{stem}gate_proj{kind}", array[:, 0::2]), (f"{stem}up_proj{kind}", array[:, 1::2])]


def permute_rows(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rotary pairs as neighbors."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray, quant: str, dequantized: bool) -> None:
    kind = gguf.GGMLQuantizationType[quant]
    fits = array.ndim > 1 and array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
    if quant == "F32" or not fits or any(part in name for part in _PLAIN) or name.endswith(".bias"):
        writer.add_tensor(name, array)
        return
    blocks = _random_blocks(array.shape, kind) if "_K" in quant else quantize(array, kind)
    if dequantized:
        writer.add_tensor(name, dequantize(blocks, kind).reshape(array.shape))
    else:
        writer.add_tensor(name, blocks, raw_dtype=kind)


def _random_blocks(shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Blocks of a format that the library only reads: random codes under small scales."""
    block, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(sum(shape))
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, num_bytes), dtype=np.uint8)
    scale = np.frombuffer(np.float16(1e-4).tobytes(), dtype=np.uint8)
    # Q3_K and Q6_K have their scale at the end; the others have two, a scale and one of minimums, at the start.
    for start in (num_bytes - 2,) if kind.name in ("Q3_K", "Q6_K") else (0, 2):
        blocks[..., start : start + 2] = scale
    return blocks.reshape(*shape[:-1], -1)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
