"""A tiny folder in the shape of the published Qwen3-Embedding models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tiny_architectures import make_tiny

EOS = "<|im_end|>"
PROMPTS = {"query": "Instruct: find passages\nQuery:", "document": ""}


def make_embedding_folder(folder: Path, *, tie: bool = False, pooling: str = "lasttoken", index: bool = False) -> Path:
    """A decoder that was saved by itself: no `model.` before names, no head; pooling by its own modules.

    Its tokenizer ends every text with a token, whose hidden state is the vector. `index` puts an index beside the file.
    """
    make_tiny("qwen3", folder, tie_word_embeddings=tie)
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): tensor for name, tensor in weights.items() if name != "lm_head.weight"}
    save_file(bare, folder / "model.safetensors", {"format": "pt"})
    if index:
        weight_map = dict.fromkeys(bare, "model.safetensors")
        write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    write_modules(folder, pooling)
    write_json(folder / "config_sentence_transformers.json", {"prompts": PROMPTS, "default_prompt_name": None})
    end_texts_with_a_token(folder / "tokenizer.json")
    return folder


def write_modules(folder: Path, pooling: str = "lasttoken") -> None:
    """Writes what says that states are pooled so, and that vectors have length 1."""
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    write_json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "lasttoken")}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 64, **modes, "include_prompt": True})


def end_texts_with_a_token(path: Path) -> None:
    """Makes a tokenizer add `EOS` after each text, as its post-processor."""
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    token_id = tokenizer["model"]["vocab"][EOS]
    parts = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": EOS, "type_id": 0}}]
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": [*parts, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {EOS: {"id": EOS, "ids": [token_id], "tokens": [EOS]}},
    }
    write_json(path, tokenizer)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
