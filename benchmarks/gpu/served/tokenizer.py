"""A tokenizer for dummy weights: a word for each token id, so that servers have texts to send."""

from __future__ import annotations

import json
from pathlib import Path


def write_tokenizer(model: Path) -> None:
    """Write one that both engines read into the folder of a model, by the vocabulary of its config."""
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {f"t{number}": number for number in range(vocab_size)},
            "unk_token": "t0",
        },
    }
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t1"}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
