"""Builds a tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, decoders, models, processors
from tokenizers import Tokenizer as Backend

from atom_core.tokenization.gguf_pre_tokenizers import PRE_TOKENIZERS
from atom_core.tokenization.gguf_sentencepiece import sentencepiece_bpe, spelled_as_in_texts
from atom_core.tokenization.gguf_token_types import CONTROL, INSTEAD, UNKNOWN, USER_DEFINED, read_types, token_id_in
from atom_core.tokenization.library_faults import faults_told_as
from atom_core.tokenization.tokenizer import Tokenizer, TokenizerError

# What llama.cpp takes where the header of a SentencePiece vocabulary is silent: as its converter once wrote them.
_SENTENCEPIECE_IDS = {"bos": 1, "eos": 2}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that `metadata` (the key-value part of a GGUF file) describes.

    Raises:
        TokenizerError: the vocabulary is missing, contradicts itself, or is of a model or pre-tokenizer not known here.
    """
    found = metadata.get("tokenizer.ggml.tokens")
    tokens = [str(token) for token in found] if isinstance(found, Sequence) and not isinstance(found, str) else []
    if not tokens:
        raise TokenizerError("the GGUF file holds no vocabulary (tokenizer.ggml.tokens): use skip_tokenizer_init")
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str) or model not in _BUILDERS:
        raise TokenizerError(
            f"the GGUF file's tokenizer is of kind {model!r}; known are byte-level BPE ('gpt2') and SentencePiece's "
            f"BPE ('llama'): {INSTEAD}"
        )
    types = read_types(tokens, metadata)
    if model == "llama":
        tokens = spelled_as_in_texts(tokens, types)
    with faults_told_as("the GGUF file's vocabulary and merges do not fit together"):
        backend = _BUILDERS[model](tokens, types, metadata)
    typed = list(zip(tokens, types, strict=True))
    special_tokens = [token for token, kind in typed if kind in (CONTROL, UNKNOWN)]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    user_defined = [token for token, kind in typed if kind == USER_DEFINED]
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in user_defined])
    special = _special_tokens(tokens, types, metadata)
    _add_bos_and_eos(backend, special, metadata)
    return Tokenizer(
        backend,
        special_tokens=special,
        chat_templates=_templates(metadata),
        name=f"gguf-{metadata.get('tokenizer.ggml.pre')}",
    )


def _byte_level_bpe(tokens: list[str], types: Sequence[int], metadata: Mapping[str, Any]) -> Backend:
    name = str(metadata.get("tokenizer.ggml.pre") or "")
    if name not in PRE_TOKENIZERS:
        # Any guess would cut some texts otherwise than the model learned them, and nobody would notice.
        says = f"names the pre-tokenizer {name!r}, which is unknown here" if name else "names no pre-tokenizer"
        raise TokenizerError(f"the GGUF file {says}; known are {', '.join(sorted(PRE_TOKENIZERS))}: {INSTEAD}")
    cut = PRE_TOKENIZERS[name]
    merges: list[tuple[str, str]] = []
    for merge in metadata.get("tokenizer.ggml.merges") or ():
        left, _, right = str(merge).partition(" ")
        merges.append((left, right))
    vocab = {token: index for index, token in enumerate(tokens)}
    backend = Backend(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, ignore_merges=cut.ignore_merges))
    if cut.nfc:
        backend.normalizer = cut.normalizer()
    backend.pre_tokenizer = cut.build()
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return backend


_BUILDERS = {"gpt2": _byte_level_bpe, "llama": sentencepiece_bpe}


def _special_tokens(tokens: list[str], types: Sequence[int], metadata: Mapping[str, Any]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    found: dict[str, str] = {}
    for role, key in keys.items():
        token_id = token_id_in(tokens, metadata, key)
        if token_id is not None:
            found[role] = tokens[token_id]
    if metadata.get("tokenizer.ggml.model") == "llama":
        for key, token_id in _SENTENCEPIECE_IDS.items():
            silent = f"tokenizer.ggml.{key}_token_id" not in metadata
            if silent and token_id < len(tokens) and types[token_id] == CONTROL:
                found[f"{key}_token"] = tokens[token_id]
    return found


def _add_bos_and_eos(backend: Backend, special: dict[str, str], metadata: Mapping[str, Any]) -> None:
    adds = {key: metadata.get(f"tokenizer.ggml.add_{key}_token") for key in ("bos", "eos")}
    for key, asked in adds.items():
        if asked and f"{key}_token" not in special:
            given = metadata.get(f"tokenizer.ggml.{key}_token_id")
            raise TokenizerError(
                f"the GGUF file's tokenizer.ggml.add_{key}_token asks for a token that tokenizer.ggml.{key}_token_id "
                f"({given}) does not name: {INSTEAD}"
            )
    bos = special.get("bos_token") if (_adds_bos(metadata) if adds["bos"] is None else adds["bos"]) else None
    eos = special.get("eos_token") if adds["eos"] else None
    around = [(token, backend.token_to_id(token)) for token in (bos, eos) if token]
    single = [part for part in (bos, "$A", eos) if part]
    if around:
        byte_level = processors.ByteLevel(trim_offsets=False)
        template = processors.TemplateProcessing(single=single, special_tokens=around)
        backend.post_processor = processors.Sequence([byte_level, template])  # type: ignore[assignment]


def _adds_bos(metadata: Mapping[str, Any]) -> bool:
    """Whether the model expects a token that begins a text, where the header does not say."""
    if metadata.get("tokenizer.ggml.model") == "llama":
        return True
    return PRE_TOKENIZERS[str(metadata.get("tokenizer.ggml.pre"))].adds_bos


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The default template, and the others by the names that the header lists."""
    keys = {"default": "tokenizer.chat_template"}
    named = metadata.get("tokenizer.chat_templates")
    if isinstance(named, Sequence):
        keys |= {str(name): f"tokenizer.chat_template.{name}" for name in named}
    return {name: str(metadata[key]) for name, key in keys.items() if metadata.get(key)}
