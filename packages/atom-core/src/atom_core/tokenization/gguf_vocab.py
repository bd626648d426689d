"""Builds a tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from atom_core.tokenization.tokenizer import Tokenizer, TokenizerError

# Token types of the GGUF format.
UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits_then_byte_level() -> Any:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _split(pattern: str) -> Any:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


# How text is cut before merging, by `tokenizer.ggml.pre`.
PRE_TOKENIZERS = {
    "default": _byte_level,
    "gpt-2": _byte_level,
    "gpt2": _byte_level,
    "smollm": _digits_then_byte_level,
    "starcoder": _digits_then_byte_level,
    "refact": _digits_then_byte_level,
    "command-r": _digits_then_byte_level,
    "llama-bpe": lambda: _split(_LLAMA3),
    "llama3": lambda: _split(_LLAMA3),
    "llama-v3": lambda: _split(_LLAMA3),
    "qwen2": lambda: _split(_QWEN2),
    "deepseek-r1-qwen": lambda: _split(_QWEN2),
}
_NORMALIZED_NFC = {"qwen2", "deepseek-r1-qwen"}


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build the tokenizer that `metadata` (the key-value part of a GGUF file) describes.

    Raises:
        TokenizerError: the vocabulary is missing, or of a model or pre-tokenizer not known here.
    """
    tokens = [str(token) for token in metadata.get("tokenizer.ggml.tokens") or ()]
    if not tokens:
        raise TokenizerError("the GGUF file holds no vocabulary (tokenizer.ggml.tokens): use skip_tokenizer_init")
    model = str(metadata.get("tokenizer.ggml.model"))
    if model != "gpt2":
        raise TokenizerError(
            f"the GGUF file's tokenizer is of kind {model!r}; only byte-level BPE ('gpt2') is read from GGUF: "
            "use the model's folder with its tokenizer.json, or skip_tokenizer_init"
        )
    backend = _byte_level_bpe(tokens, metadata)
    backend.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in _typed(tokens, metadata, CONTROL)]
    )
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in _typed(tokens, metadata, USER_DEFINED)])
    special = _special_tokens(tokens, metadata)
    _add_bos_and_eos(backend, special, metadata)
    return Tokenizer(
        backend,
        special_tokens=special,
        chat_templates=_templates(metadata),
        name=f"gguf-{metadata.get('tokenizer.ggml.pre')}",
    )


def _byte_level_bpe(tokens: list[str], metadata: Mapping[str, Any]) -> Backend:
    pre = str(metadata.get("tokenizer.ggml.pre", "default"))
    if pre not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"the GGUF file's pre-tokenizer {pre!r} is unknown here; known are {', '.join(sorted(PRE_TOKENIZERS))}: "
            "use the model's folder with its tokenizer.json, or skip_tokenizer_init"
        )
    merges: list[tuple[str, str]] = []
    for merge in metadata.get("tokenizer.ggml.merges") or ():
        left, _, right = str(merge).partition(" ")
        merges.append((left, right))
    vocab = {token: index for index, token in enumerate(tokens)}
    try:
        ignore_merges = pre in {"llama-bpe", "llama3", "llama-v3"}  # whole words in the vocabulary win, as in Llama 3
        backend = Backend(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, ignore_merges=ignore_merges))
    except Exception as error:  # the library raises bare Exception
        raise TokenizerError(f"the GGUF file's vocabulary and merges do not fit together: {error}") from error
    if pre in _NORMALIZED_NFC:
        backend.normalizer = normalizers.NFC()  # type: ignore[assignment]
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]()
    backend.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    return backend


def _typed(tokens: list[str], metadata: Mapping[str, Any], kind: int) -> list[str]:
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return []
    return [token for token, token_type in zip(tokens, types, strict=False) if int(token_type) == kind]


def _special_tokens(tokens: list[str], metadata: Mapping[str, Any]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    found: dict[str, str] = {}
    for role, key in keys.items():
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and 0 <= int(token_id) < len(tokens):
            found[role] = tokens[int(token_id)]
    return found


def _add_bos_and_eos(backend: Backend, special: dict[str, str], metadata: Mapping[str, Any]) -> None:
    bos = special.get("bos_token") if metadata.get("tokenizer.ggml.add_bos_token") else None
    eos = special.get("eos_token") if metadata.get("tokenizer.ggml.add_eos_token") else None
    around = [(token, backend.token_to_id(token)) for token in (bos, eos) if token]
    single = " ".join(part for part in (bos, "$A", eos) if part)
    if around:
        byte_level = processors.ByteLevel(trim_offsets=False)
        template = processors.TemplateProcessing(single=single, special_tokens=around)
        backend.post_processor = processors.Sequence([byte_level, template])  # type: ignore[assignment]


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    template = metadata.get("tokenizer.chat_template")
    return {"default": str(template)} if template else {}
