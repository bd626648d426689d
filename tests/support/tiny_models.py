"""Tiny random Llama checkpoints on disk, with a tokenizer and a chat template, for tests of every package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

UNK_ID, BOS_ID, EOS_ID = 0, 1, 2
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
    },
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "short_factor": [1.0 + 0.05 * i for i in range(8)],
        "long_factor": [1.5 + 0.25 * i for i in range(8)],
    },
}


def make_tiny_llama(
    folder: str | Path,
    *,
    seed: int = 0,
    tie: bool = False,
    rope: str | dict[str, Any] | None = None,
    num_layers: int = 2,
    num_heads: int = 4,
    kv_heads: int = 2,
    head_dim: int | None = None,
    hidden: int = 64,
    intermediate: int = 128,
    vocab: int = 512,
    max_position: int = 512,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    num_shards: int = 1,
    old_style: bool = False,
    **config_overrides: Any,
) -> Path:
    """Writes a float32 Llama checkpoint and returns its folder.

    The weights are sharp (large), so that greedy tokens are far from ties. `rope` names an entry of `ROPES` or is
    one itself. `num_shards` above 1 writes a sharded checkpoint with its index. `old_style` writes the config as it
    was before transformers 5 (`rope_theta`, `rope_scaling`, `torch_dtype`). The head size defaults to hidden / heads;
    `longrope`'s factors fit a head size of 16.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    rope_parameters = dict(ROPES[rope or "default"] if rope is None or isinstance(rope, str) else rope)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim or hidden // num_heads,
        "max_position_embeddings": max_position,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": attention_bias,
        "mlp_bias": mlp_bias,
        "tie_word_embeddings": tie,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
        "pad_token_id": UNK_ID,
    }
    if old_style:
        config["rope_theta"] = rope_parameters.pop("rope_theta")
        config["rope_scaling"] = None if rope_parameters["rope_type"] == "default" else rope_parameters
        config["torch_dtype"] = "float32"
    else:
        config["rope_parameters"] = rope_parameters
        config["dtype"] = "float32"
    config.update(config_overrides)
    _write_json(folder / "config.json", config)
    generation = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": UNK_ID}
    _write_json(folder / "generation_config.json", generation)
    write_weights(folder, random_llama_weights(config, seed), num_shards=num_shards)
    write_tokenizer(folder, vocab, max_position)
    return folder


def random_llama_weights(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Hugging Face names -> random float32 arrays of the model that `config` describes."""
    rng = np.random.default_rng(seed)

    def normal(std: float, *shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(std)

    hidden, intermediate, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q_size = config["num_attention_heads"] * config["head_dim"]
    kv_size = config["num_key_value_heads"] * config["head_dim"]
    if config["tie_word_embeddings"]:
        # A large tied embedding would echo the last token for ever: keep it small and sharpen in the final norm.
        weights = {
            "model.embed_tokens.weight": normal(0.05, vocab, hidden),
            "model.norm.weight": 4 + normal(0.1, hidden),
        }
    else:
        weights = {
            "model.embed_tokens.weight": normal(0.2, vocab, hidden),
            "model.norm.weight": 1 + normal(0.1, hidden),
        }
        weights["lm_head.weight"] = normal(0.2, vocab, hidden)
    attention, mlp = config["attention_bias"], config["mlp_bias"]
    linears = (
        ("self_attn.q_proj", q_size, hidden, attention),
        ("self_attn.k_proj", kv_size, hidden, attention),
        ("self_attn.v_proj", kv_size, hidden, attention),
        ("self_attn.o_proj", hidden, q_size, attention),
        ("mlp.gate_proj", intermediate, hidden, mlp),
        ("mlp.up_proj", intermediate, hidden, mlp),
        ("mlp.down_proj", hidden, intermediate, mlp),
    )
    for layer_id in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer_id}."
        for name, rows, columns, bias in linears:
            weights[f"{prefix}{name}.weight"] = normal(0.08, rows, columns)
            if bias:
                weights[f"{prefix}{name}.bias"] = normal(0.05, rows)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = 1 + normal(0.1, hidden)
    return weights


def write_weights(folder: str | Path, weights: dict[str, np.ndarray], *, num_shards: int = 1) -> None:
    """Writes `model.safetensors`, or that many shards with `model.safetensors.index.json`."""
    folder = Path(folder)
    metadata = {"format": "pt"}
    if num_shards == 1:
        save_file(weights, folder / "model.safetensors", metadata)
        return
    names, weight_map = sorted(weights), {}
    for shard in range(num_shards):
        file = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        part = {name: weights[name] for name in names[shard::num_shards]}
        save_file(part, folder / file, metadata)
        weight_map.update(dict.fromkeys(part, file))
    total = sum(array.nbytes for array in weights.values())
    _write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": weight_map})


def write_tokenizer(folder: str | Path, vocab: int = 512, max_position: int = 512) -> None:
    """Writes a byte-level BPE tokenizer of exactly `vocab` (at least 259) tokens, and a chat template beside it."""
    folder = Path(folder)
    tokens = [*SPECIAL_TOKENS, *_byte_characters()]
    merges = []
    for left, right in _merge_candidates():
        if len(tokens) == vocab:
            break
        if left + right not in tokens:
            merges.append([left, right])
            tokens.append(left + right)
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    _write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{"id": i, "content": content, **special} for i, content in enumerate(SPECIAL_TOKENS)],
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: token_id for token_id, token in enumerate(tokens)},
                "merges": merges,
            },
        },
    )
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL_TOKENS[BOS_ID],
            "eos_token": SPECIAL_TOKENS[EOS_ID],
            "unk_token": SPECIAL_TOKENS[UNK_ID],
            "pad_token": SPECIAL_TOKENS[UNK_ID],
            "model_max_length": max_position,
            "clean_up_tokenization_spaces": False,
        },
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def _byte_characters() -> list[str]:
    """The 256 printable stand-ins that GPT-2 gave to bytes, in byte order."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters, extra = [], 0
    for byte in range(256):
        characters.append(chr(byte if byte in printable else 256 + extra))
        extra += byte not in printable
    return characters


def _merge_candidates():
    """Pairs to merge, plausible ones first: a space before a letter, pairs of letters, then longer words."""
    letters = "etaoinshrdlcumwfgypbvkjxqz"
    yield from (("\u0120", letter) for letter in letters)
    pairs = [
        (letters[i], letters[total - i]) for total in range(51) for i in range(total + 1) if max(i, total - i) < 26
    ]
    yield from pairs
    yield from ((left + right, last) for left, right in pairs for last in letters)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")


def add_special_tokens(folder: str | Path, texts: Sequence[str], words: Sequence[str] = ()) -> None:
    """Makes the last tokens of a tokenizer that `write_tokenizer` wrote the special tokens `texts`, then `words`."""
    path = Path(folder) / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    model = tokenizer["model"]
    kept = len(model["vocab"]) - len(texts) - len(words)
    model["vocab"] = {token: token_id for token, token_id in model["vocab"].items() if token_id < kept}
    # The last tokens are what the last merges make, so nothing else is made of them.
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in model["vocab"]]
    form = {name: tokenizer["added_tokens"][0][name] for name in ("single_word", "lstrip", "rstrip", "normalized")}
    for token_id, text in enumerate((*texts, *words), start=kept):
        model["vocab"][text] = token_id
        tokenizer["added_tokens"].append({"id": token_id, "content": text, "special": text in texts, **form})
    _write_json(path, tokenizer)
