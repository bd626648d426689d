"""Text of SentencePiece's tokens as they come: characters over several byte tokens, bytes that are none, the space."""

from __future__ import annotations

import json
import random

import pytest

from atom_core.tokenization import IncrementalDetokenizer
from atom_core.tokenization.gguf_vocab import tokenizer_from_gguf
from sentencepiece_gguf import KINDS, TEXT

SAVED = json.loads((TEXT.parent / "sentencepiece_models.json").read_text(encoding="utf-8"))
LLAMA = tokenizer_from_gguf(SAVED["llama"]["header"])
BYTE_0 = LLAMA.token_to_id("<0x00>")


def streamed(token_ids, prompt=(), tokenizer=LLAMA, **options):
    stream = IncrementalDetokenizer(tokenizer, prompt, **options)
    return [*(stream.add(token_id) for token_id in token_ids), stream.flush()]


def bytes_ids(*values):
    return [BYTE_0 + value for value in values]


@pytest.mark.parametrize("kind", KINDS)
def test_texts_cut_anywhere_go_on_as_the_whole_has_them(kind):
    tokenizer = tokenizer_from_gguf(SAVED[kind]["header"])
    for text, token_ids in SAVED[kind]["texts"]:
        for cut in range(len(token_ids)):
            before = b"".join(map(tokenizer.id_to_bytes, token_ids[:cut]))
            if before.decode(errors="ignore").encode() != before:
                continue  # inside a character
            whole, prompt = tokenizer.decode(token_ids), tokenizer.decode(token_ids[:cut])
            assert "".join(streamed(token_ids[cut:], [1, *token_ids[:cut]], tokenizer)) == whole[len(prompt) :], text


def test_a_character_of_several_bytes_waits_for_its_last():
    assert streamed(bytes_ids(*"é🙂".encode()), prompt=[400]) == ["", "é", "", "", "", "🙂", ""]


def test_bytes_that_are_no_character_cost_no_text_beside_them():
    newline, bad, a = 0x0A, 0x99, LLAMA.token_to_id("a")
    assert "".join(streamed([*bytes_ids(newline, bad, newline), a], prompt=[400])) == "\n\ufffd\na"


def test_an_unfinished_character_at_the_end_is_left_out():
    assert "".join(streamed(bytes_ids(0x0A, 0xF0, 0x9F), prompt=[400])) == "\n"


def test_a_space_begins_an_answer_unless_it_is_the_texts_own_first():
    word = LLAMA.token_to_id("▁the")
    assert streamed([word], prompt=[1])[0] == "the"
    assert streamed([word], prompt=[1, word])[0] == " the"
    assert streamed([word], prompt=[1, word, *[2] * 9])[0] == " the"


def test_special_tokens_are_text_only_where_they_are_kept():
    word = LLAMA.token_to_id("▁the")
    assert "".join(streamed([word, 2, word], prompt=[1])) == "the the"
    assert "".join(streamed([word, 2, word], prompt=[1], kept_special_token_ids=[2])) == "the</s> the"


def test_any_bytes_come_out_as_their_own_text():
    draw = random.Random(0)
    for _ in range(300):
        values = [draw.choice([draw.randrange(256), 0x41, *"🙂".encode()]) for _ in range(draw.randrange(20))]
        text = bytes(values).decode(errors="replace").rstrip("\ufffd")
        assert "".join(streamed(bytes_ids(*values), prompt=[400])).rstrip("\ufffd") == text
