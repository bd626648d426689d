"""Small models of the sentencepiece library as the header of a GGUF file, in the way of llama.cpp's converter."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

TEXT = Path(__file__).parent / "origin_of_species.txt"
USER_DEFINED = ("▁▁", "▁▁▁▁", "\n\n", "<table>")
# As the publishers trained them, but for sizes: neither changes texts, both know every byte.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"add_dummy_prefix": True, "split_digits": True},
    "gemma": {"add_dummy_prefix": False, "split_digits": True, "user_defined_symbols": list(USER_DEFINED)},
}


def train(kind: str, vocab_size: int = 640) -> Any:
    """A `SentencePieceProcessor` trained on a public-domain text."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.read_text(encoding="utf-8").splitlines()),
        model_writer=model,
        model_type="bpe",
        vocab_size=vocab_size,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        minloglevel=2,
        **KINDS[kind],
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def header(model: Any, kind: str) -> dict[str, Any]:
    """The keys of a GGUF file that tell `model`."""
    num_tokens = model.get_piece_size()
    texts = [model.id_to_piece(token_id) for token_id in range(num_tokens)]
    types = [_type(model, token_id, text) for token_id, text in enumerate(texts)]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [
            text.replace("▁", " ") if token_type == 4 else text for text, token_type in zip(texts, types, strict=True)
        ],
        "tokenizer.ggml.scores": [model.get_score(token_id) for token_id in range(num_tokens)],
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.add_space_prefix": KINDS[kind]["add_dummy_prefix"],
    }


def _type(model: Any, token_id: int, text: str) -> int:
    if model.is_unknown(token_id):
        return 2
    if model.is_control(token_id):
        return 3
    if text in USER_DEFINED:
        return 4
    if model.is_unused(token_id):
        return 5
    return 6 if model.is_byte(token_id) else 1
