"""Reads a tokenizer from a Hugging Face folder: tokenizer.json or tiktoken.model, and what lies beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from atom_core.tokenization import tiktoken_vocab
from atom_core.tokenization.library_faults import faults_told_as
from atom_core.tokenization.tokenizer import Tokenizer, TokenizerError

SPECIAL_ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


def has_tokenizer(folder: Path) -> bool:
    """Whether a file in `folder` is one that a tokenizer is read from."""
    return any((folder / name).is_file() for name in ("tokenizer.json", tiktoken_vocab.FILE_NAME))


def tokenizer_from_folder(folder: Path) -> Tokenizer:
    """Build the tokenizer of `folder`; TokenizerError says what is missing or broken."""
    config = _read_json(folder / "tokenizer_config.json")
    backend = _backend(folder, config)
    backend.no_truncation()
    backend.no_padding()
    special = {**_special_tokens(_read_json(folder / "special_tokens_map.json")), **_special_tokens(config)}
    templates = {**_templates_in_config(config), **_template_files(folder)}
    return Tokenizer(
        backend,
        special_tokens=special,
        chat_templates=templates,
        response_template=config.get("response_template"),
        name=str(config.get("tokenizer_class") or ""),
    )


def _backend(folder: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    path, tiktoken = folder / "tokenizer.json", folder / tiktoken_vocab.FILE_NAME
    if path.is_file():
        with faults_told_as(f"{path} is not a tokenizer that `tokenizers` {tokenizers.__version__} reads"):
            return tokenizers.Tokenizer.from_file(str(path))
    if tiktoken.is_file():
        return tiktoken_vocab.backend_from_tiktoken(tiktoken, config)
    raise TokenizerError(_why_there_is_none(folder, config))


def _why_there_is_none(folder: Path, config: dict[str, Any]) -> str:
    remedy = "give token ids with skip_tokenizer_init, or a folder that holds a tokenizer.json"
    if "AutoTokenizer" in (config.get("auto_map") or {}):
        return (
            f"the tokenizer of {folder} is code of the model's own, and there is no tokenizer.json: {remedy}; or read "
            "that code, and have it run by trust_remote_code"
        )
    others = [
        name for name in ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model") if (folder / name).exists()
    ]
    if others:
        found = ", ".join(others)
        return f"{folder} has {found} but no tokenizer.json: convert it with transformers' save_pretrained, {remedy}"
    return f"{folder} has no tokenizer.json: {remedy}"


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise TokenizerError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for role in SPECIAL_ROLES:
        token = config.get(role)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            found[role] = token
    return found


def _templates_in_config(config: dict[str, Any]) -> dict[str, str]:
    """`chat_template` is one template, or a list of named ones."""
    template = config.get("chat_template")
    if isinstance(template, str):
        return {"default": template}
    if isinstance(template, list):
        return {
            str(entry["name"]): str(entry["template"])
            for entry in template
            if isinstance(entry, dict) and "name" in entry and "template" in entry
        }
    return {}


def _template_files(folder: Path) -> dict[str, str]:
    """`chat_template.jinja`, and named ones under `additional_chat_templates/`."""
    templates = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = folder / "chat_template.jinja"
    return {name: _read_template(path) for name, path in templates.items()}


def _read_template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{path} is not text in UTF-8: {error}") from error
