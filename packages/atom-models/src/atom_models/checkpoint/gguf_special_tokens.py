"""Which tokens begin and end a text, by the header of a GGUF file."""

from __future__ import annotations

from typing import Any

from atom_models.checkpoint.gguf_file import GGUFFile

_ROLES = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id"}
# The converter writes one end of text, and rarely those of turns and messages, which chats end with. Models are known
# by these texts, as llama.cpp knows them.
_ENDS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<end_of_turn>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|call|>",
    "[EOS]",
    "[EOT]",
    "[e~[",
)
_CONTROL = 3


def special_tokens(file: GGUFFile) -> tuple[dict[str, int], dict[str, Any]]:
    """(ids of a config, generation_config): the latter with every token that ends a turn, a message or the text."""
    metadata = file.metadata
    tokens = {
        f"{role}_token_id": metadata[f"tokenizer.ggml.{key}"]
        for role, key in _ROLES.items()
        if f"tokenizer.ggml.{key}" in metadata
    }
    generation: dict[str, Any] = dict(tokens)
    if "eos_token_id" in tokens:
        named = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eot", "eom"))
        ends = [tokens["eos_token_id"], *(token for token in named if token is not None), *_known_ends(file)]
        generation["eos_token_id"] = list(dict.fromkeys(ends))
    return tokens, generation


def _known_ends(file: GGUFFile) -> list[int]:
    types = file.metadata.get("tokenizer.ggml.token_type") or ()
    found = file.metadata.positions("tokenizer.ggml.tokens", _ENDS)
    return [position for position in found if position < len(types) and types[position] == _CONTROL]
