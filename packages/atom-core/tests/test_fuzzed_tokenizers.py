"""Tokenizer files that somebody made up: each is read, or refused in a line that names what is wrong."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from atom_core.tokenization import Tokenizer, TokenizerError
from atom_core.tokenization.gguf_vocab import tokenizer_from_gguf
from gguf_tokenizer_metadata import make_gguf_metadata
from sentencepiece_gguf import TEXT

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
ODD: list[Any] = [None, True, 0, -1, 2**64, 1.5, "", "a", "\ud800", "\0", [], [None], [[]], {}, {"a": None}, "x" * 5000]
IN_GGUF = [value for value in ODD if value is not None and not isinstance(value, dict) and value != [None]]
SAID = ("", "Hello  world\n", "漢字 🙂", "\0<|im_end|>")
NUM_CHANGES = 120
SENTENCEPIECE = json.loads((TEXT.parent / "sentencepiece_models.json").read_text(encoding="utf-8"))


def changed_bytes(draw: random.Random, content: bytes) -> bytes:
    """Cut, or with some bytes that are others."""
    if draw.random() < 0.2:
        return content[: draw.randrange(len(content))]
    changed = bytearray(content)
    for _ in range(draw.choice((1, 2, 8))):
        changed[draw.randrange(len(changed))] = draw.choice((draw.randrange(256), *b'"{}[],:0-'))
    return bytes(changed)


def changed_value(draw: random.Random, value: Any, odd: list[Any] = ODD) -> Any:
    """A copy with something odd somewhere inside, or with something left out."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        name = draw.choice(list(value))
        if draw.random() < 0.2:
            return {other: kept for other, kept in value.items() if other != name}
        return value | {name: changed_value(draw, value[name], odd)}
    if isinstance(value, list) and value and draw.random() < 0.9:
        place = draw.randrange(len(value))
        return [*value[:place], changed_value(draw, value[place], odd), *value[place + 1 :]]
    return draw.choice(odd)


def is_read(read) -> bool:
    """Whether a tokenizer came of it, which then reads texts; False where it was refused in words."""
    try:
        tokenizer = read()
    except TokenizerError:
        return False
    for text in SAID:
        tokenizer.decode(tokenizer.encode(text))
    assert tokenizer.vocab_size >= 0
    assert isinstance(tokenizer.special_token_ids, frozenset)
    return True


@pytest.fixture
def folder(tiny_llama, tmp_path) -> Path:
    for name in FILES:
        if (tiny_llama / name).is_file():
            shutil.copy(tiny_llama / name, tmp_path / name)
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "<|im_end|>"}, "bos_token": "a"}')
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_file_with_other_bytes_is_read_or_refused(name, folder):
    draw, content = random.Random(name), (folder / name).read_bytes()
    read = []
    for _ in range(NUM_CHANGES):
        (folder / name).write_bytes(changed_bytes(draw, content))
        read.append(is_read(lambda: Tokenizer.from_folder(folder)))
    assert not all(read)


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith("json")])
def test_a_file_with_other_values_is_read_or_refused(name, folder):
    draw, value = random.Random(name), json.loads((folder / name).read_text())
    for _ in range(NUM_CHANGES):
        (folder / name).write_text(json.dumps(changed_value(draw, value)))
        is_read(lambda: Tokenizer.from_folder(folder))


@pytest.mark.parametrize("kind", ["byte-level", "llama", "gemma"])
def test_the_tokenizer_of_a_gguf_file_with_other_values_is_read_or_refused(kind, tiny_llama):
    metadata = make_gguf_metadata(tiny_llama) if kind == "byte-level" else SENTENCEPIECE[kind]["header"]
    draw = random.Random(kind)
    for _ in range(NUM_CHANGES):
        changed = changed_value(draw, metadata, IN_GGUF)
        if isinstance(changed, dict):
            is_read(lambda changed=changed: tokenizer_from_gguf(changed))
