"""A tiny model whose configuration and vocabulary are read by Python files of its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_models import make_tiny_llama

TOKENIZER = """
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from .pieces import FILE

class MineTokenizer(PreTrainedTokenizerFast):
    vocab_files_names = {"vocab_file": FILE}

    def __init__(self, vocab_file, **more):
        super().__init__(tokenizer_object=Tokenizer.from_file(vocab_file), **more)
"""
CONFIG = """
from transformers import PretrainedConfig

class MineConfig(PretrainedConfig):
    model_type = "mine"
    attribute_map = {"hidden_size": "n_embd"}

    def __init__(self, n_embd=64, **more):
        self.n_embd = n_embd
        super().__init__(**more)
"""


def make_folder_with_code(folder: Path) -> Path:
    """Writes the model of `make_tiny_llama` so that only its code finds its hidden size and its vocabulary.

    Code of a model lies beside these, which says that it ran if it ever does (see `leave_mark`).
    """
    make_tiny_llama(folder)
    config = read(folder / "config.json")
    config |= {"model_type": "mine", "n_embd": config.pop("hidden_size")}
    config["auto_map"] = {"AutoConfig": "configuration_mine.MineConfig", "AutoModelForCausalLM": "modeling_mine.Mine"}
    write(folder / "config.json", config)
    (folder / "tokenizer.json").rename(folder / "pieces.data")
    named = {"AutoTokenizer": [None, "tokenization_mine.MineTokenizer"]}
    write(folder / "tokenizer_config.json", {**read(folder / "tokenizer_config.json"), "auto_map": named})
    (folder / "configuration_mine.py").write_text(CONFIG)
    (folder / "tokenization_mine.py").write_text(TOKENIZER)
    (folder / "pieces.py").write_text("FILE = 'pieces.data'\n")
    leave_mark(folder, "modeling_mine.py")
    return folder


def leave_mark(folder: Path, file: str) -> Path:
    """Has a file of Python say that it ran, when it runs; returns what is there then."""
    mark, path = folder / f"{file}.ran", folder / file
    code = path.read_text() if path.exists() else ""
    path.write_text(f"open({str(mark)!r}, 'w').close()\n{code}")
    return mark


def write(path: Path, fields: dict[str, Any]) -> None:
    """Writes an object as JSON."""
    path.write_text(json.dumps(fields))


def read(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds."""
    return json.loads(path.read_text())
