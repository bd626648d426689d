"""Tokenizers of several kinds, made by hand."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from atom_core.tokenization import Tokenizer
from atom_core.tokenization.gguf_vocab import PRE_TOKENIZERS

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def make_llama(**overrides) -> Tokenizer:
    """Spaces as ▁, and bytes for what the vocabulary has no characters for: as Llama 2's."""
    vocab = {token: i for i, token in enumerate(["<unk>", *BYTES, "▁", *"abcdefgh", "ab", "▁ab", "▁▁", "▁▁▁▁"])}
    merges = [("a", "b"), ("▁", "ab"), ("▁", "▁"), ("▁▁", "▁▁")]
    model = {"unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, **overrides}
    backend = Backend(models.BPE(vocab=vocab, merges=merges, **model))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return Tokenizer(backend)


def make_bert() -> Tokenizer:
    """Words and their parts; what lies between words is dropped."""
    vocab = {token: i for i, token in enumerate(["[UNK]", *"abcdefgh", *(f"##{c}" for c in "abcdefgh")])}
    backend = Backend(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return Tokenizer(backend)


def make_unigram() -> Tokenizer:
    """The likeliest pieces; a run of unknown characters is one."""
    pieces = [("<unk>", 0.0), *((c, -2.0) for c in "abcdefgh▁"), ("ab", -1.0), ("▁ab", -1.5)]
    backend = Backend(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    return Tokenizer(backend)


def make_byte_level(folder: Path, kind: str) -> Tokenizer:
    """The tokenizer of `folder`, with the rule by which a GGUF file of this kind cuts text before merging."""
    tokenizer = Tokenizer.from_folder(folder)
    cut = PRE_TOKENIZERS[kind]
    tokenizer.backend.pre_tokenizer = cut.build()
    if cut.nfc:
        tokenizer.backend.normalizer = cut.normalizer()
    return tokenizer


def tokenizer_kinds(folder: Path) -> dict[str, Tokenizer]:
    """One of each; those of byte level have the vocabulary of `folder`."""
    byte_level = {kind: make_byte_level(folder, kind) for kind in PRE_TOKENIZERS}
    others = {"llama": make_llama(), "bert": make_bert(), "unigram": make_unigram()}
    return byte_level | others | {"folder": Tokenizer.from_folder(folder)}
