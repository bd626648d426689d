"""SentencePiece's vocabularies in GGUF files give SentencePiece's tokens, and broken ones are refused in a line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import gguf
import pytest

from atom_core.tokenization import TokenizerError
from atom_core.tokenization.gguf_vocab import tokenizer_from_gguf
from atom_models.checkpoint.gguf_file import read_gguf
from sentencepiece_gguf import KINDS, TEXT, header, train

# Headers of two trained models, and what sentencepiece 0.2.3 made of hard texts.
SAVED = json.loads((TEXT.parent / "sentencepiece_models.json").read_text(encoding="utf-8"))
SCORES, TYPES, TOKENS = (f"tokenizer.ggml.{name}" for name in ("scores", "token_type", "tokens"))


def saved_header(kind="llama", **more):
    return {**SAVED[kind]["header"], **{f"tokenizer.ggml.{key}": value for key, value in more.items()}}


def changed(key, token_id, value, kind="llama"):
    """A header with another value for one token."""
    values = list(SAVED[kind]["header"][f"tokenizer.ggml.{key}"])
    values[token_id] = value
    return saved_header(kind, **{key: values})


@pytest.mark.parametrize("kind", KINDS)
def test_hard_texts_get_the_tokens_of_sentencepiece_and_come_back(kind):
    tokenizer = tokenizer_from_gguf(saved_header(kind))
    for text, token_ids in SAVED[kind]["texts"]:
        assert tokenizer.encode(text, add_special_tokens=False) == token_ids, text
        assert tokenizer.decode(token_ids) == text


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_gets_the_tokens_of_sentencepiece(kind):
    pytest.importorskip("sentencepiece")
    model, draw, book = train(kind), random.Random(0), TEXT.read_text(encoding="utf-8")
    tokenizer = tokenizer_from_gguf(header(model, kind))
    for num in range(500):
        start = draw.randrange(len(book))
        text = book[start : start + draw.randrange(120)].replace(" ", " " * draw.randrange(1, 4))
        shuffled = "".join(draw.choice(text or "a") for _ in range(40))
        for one in (text, shuffled, "".join(draw.choices("ae \n\U0001f642\u0301", k=num % 50)), " " * num + "a" * num):
            assert tokenizer.encode(one, add_special_tokens=False) == model.encode(one), one


@pytest.mark.parametrize("kind", KINDS)
def test_a_vocabulary_comes_through_a_file_as_it_is(kind, tmp_path: Path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    keys = saved_header(kind)
    writer.add_tokenizer_model(keys["tokenizer.ggml.model"])
    writer.add_token_list(keys[TOKENS])
    writer.add_token_scores(keys[SCORES])
    writer.add_token_types(keys[TYPES])
    writer.add_add_space_prefix(keys["tokenizer.ggml.add_space_prefix"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    tokenizer = tokenizer_from_gguf(read_gguf(tmp_path / "m.gguf").metadata)
    for text, token_ids in SAVED[kind]["texts"]:
        assert tokenizer.encode(text, add_special_tokens=False) == token_ids, text
        assert tokenizer.encode(text) == [1, *token_ids]


def test_the_beginning_and_the_end_of_a_text_follow_the_header():
    plain = tokenizer_from_gguf(saved_header()).encode("a", add_special_tokens=False)
    for begins in (True, False):
        for ends in (True, False):
            tokenizer = tokenizer_from_gguf(saved_header(add_bos_token=begins, add_eos_token=ends))
            assert tokenizer.encode("a") == [1] * begins + plain + [2] * ends


def test_special_tokens_in_a_text_are_themselves_and_left_out_of_answers():
    tokenizer = tokenizer_from_gguf(saved_header())
    assert tokenizer.encode("<s>a<unk></s>", add_special_tokens=False)[::2] == [1, 0]
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert tokenizer.decode([0, 1, 2]) == ""


def test_spaces_that_older_converters_left_as_they_are_spelled_inside_are_found_in_texts():
    tokens = list(SAVED["gemma"]["header"][TOKENS])
    spaces = tokens.index("    ")
    older = tokenizer_from_gguf(changed("tokens", spaces, "▁▁▁▁", kind="gemma"))
    assert older.encode("a    b", add_special_tokens=False)[1] == spaces
    assert older.decode([spaces]) == "    "


def two_of_a_score():
    """Ids of two tokens that are made of others and of more than one letter."""
    tokens = SAVED["llama"]["header"][TOKENS]
    return tokens.index("▁th"), tokens.index("an")


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (saved_header(scores=None), r"lacks tokenizer\.ggml\.scores"),
        (saved_header(token_type=None), r"lacks tokenizer\.ggml\.token_type"),
        (saved_header(scores=[0.0] * 7), r"has 640 tokens, but tokenizer\.ggml\.scores holds 7"),
        (saved_header(token_type=[1] * 641), r"640 tokens, but tokenizer\.ggml\.token_type holds 641"),
        (changed("scores", 300, float("nan")), r"token 300 .* has the score nan"),
        (changed("token_type", 300, 9), r"token 300 .* is of type 9; known are 1 \(normal\)"),
        (changed("token_type", 300, 0), r"token 300 .* is of type 0"),
        (changed("tokens", 301, SAVED["llama"]["header"][TOKENS][300]), r"tokens 300 and 301 are both"),
        (changed("tokens", 3, "<0xZZ>"), r"<0x00> is missing"),
        (changed("token_type", 3, 1), r"<0x00> is missing"),
        (changed("token_type", two_of_a_score()[0], 5), r"is unused, but others spell it"),
        (
            changed("scores", two_of_a_score()[0], SAVED["llama"]["header"][SCORES][two_of_a_score()[1]]),
            r"have one score",
        ),
        (saved_header(precompiled_charsmap=[1]), "names precompiled_charsmap, which is unknown"),
        (saved_header(remove_extra_whitespaces=True), "names remove_extra_whitespaces, which is unknown"),
        (saved_header(add_bos_token=True, bos_token_id=640), r"add_bos_token asks .*bos_token_id \(640\) does"),
        (saved_header(add_eos_token=True, eos_token_id=-1), r"add_eos_token asks .*eos_token_id \(-1\)"),
        ({**changed("token_type", 0, 3), "tokenizer.ggml.unknown_token_id": 640}, r"unknown_token_id is 640"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused_in_a_line_that_says_what_to_do(broken, message):
    with pytest.raises(TokenizerError, match=message) as refusal:
        tokenizer_from_gguf(broken)
    assert "give --tokenizer" in str(refusal.value)
    assert "\n" not in str(refusal.value)
