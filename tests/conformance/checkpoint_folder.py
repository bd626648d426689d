"""A GGUF model as the folder that transformers loads: the same weights in float32, and the same tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from atom_core.tokenization import Tokenizer
from atom_models import open_checkpoint
from atom_models.weights.gguf_source import open_gguf


def write_checkpoint_folder(gguf: Path, folder: Path) -> Path:
    """Writes `gguf` into `folder` for tools that read nothing else, unless that is done; returns the folder."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = open_checkpoint(gguf)
    tensors = {name: values.to(torch.float32).contiguous() for name, values in open_gguf(checkpoint)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer = Tokenizer.from_checkpoint(checkpoint)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "generation_config.json", dict(checkpoint.generation_config))
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": checkpoint.max_model_len,
            "clean_up_tokenization_spaces": False,
            "chat_template": tokenizer.chat_template,
            **tokenizer.special_tokens,
        },
    )
    # Last, since it says that the folder is whole.
    write_json(folder / "config.json", {**checkpoint.config, "dtype": "float32"})
    return folder


def write_json(path: Path, value: dict) -> None:
    """Writes `value` for people too."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")
