"""Tokenizers of GGUF files: text is cut as the models' own tokenizers cut it, or the file is refused."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers

from atom_core import LLMEngine, SamplingParams
from atom_core.tokenization import TokenizerError
from atom_core.tokenization.byte_level import byte_level_bytes
from atom_core.tokenization.gguf_pre_tokenizers import PRE_TOKENIZERS
from atom_core.tokenization.gguf_vocab import tokenizer_from_gguf
from converted_gguf import write_gguf

# The normalizer, the pre-tokenizer and the decoder of tokenizer.json files as their publishers wrote them.
PUBLISHED = Path(__file__).parents[3] / "tests" / "support" / "published_tokenizers"
HARD = [
    "Hello  world\n\n\t x",
    "½ Ⅷ ٣٤ 123 4567 1234567",
    "漢字かな交じり文 🙂👨‍👩‍👧",
    " naïve café 'll DON'T I'M we'Ve",
    "def f(x):\n    return x**2\r\n",
    "\u200b\u00a0 zero \r\n\r\n ",
    "中文 english混合abc 한국어 カタカナ",
    "HelloWorld XMLHttpRequest iPhone ÀÉÎ ǅ",
    "a/b//c\n//\n/ x $100 €50 +1 <=> ^~| `x`",
    "e\u0301 NFC \u212b ﬁ Ａｂｃ １２３ ！？",
    "Привет, мир! Ελληνικά עברית العربية हिन्दी ไทย",
]
BYTES = [chr(33 + index) for index in range(94)]


def make_byte_level(pre, **more):
    """GGUF metadata of a byte-level vocabulary without merges."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": BYTES,
        "tokenizer.ggml.merges": [],
        **more,
    }


def pieces(pre, text):
    backend = tokenizer_from_gguf(make_byte_level(pre)).backend
    return [byte_level_bytes(piece).decode() for piece, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


def published(name):
    """A tokenizer that cuts as the published one does, over a vocabulary of nothing."""
    sections = json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))
    model = {"type": "BPE", "vocab": {}, "merges": [], "ignore_merges": sections.pop("ignore_merges")}
    whole = {"version": "1.0", "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    return tokenizers.Tokenizer.from_str(json.dumps({**whole, **sections, "model": model}))


@pytest.mark.parametrize(("pre", "name"), [("qwen2", "qwen3"), ("deepseek-v3", "deepseek-v3"), ("gpt-4o", "gpt-oss")])
def test_text_is_cut_as_the_published_tokenizer_cuts_it(pre, name):
    ours, theirs = tokenizer_from_gguf(make_byte_level(pre)).backend, published(name)
    for text in HARD:
        normalized = text if theirs.normalizer is None else theirs.normalizer.normalize_str(text)
        assert (text if ours.normalizer is None else ours.normalizer.normalize_str(text)) == normalized
        assert ours.pre_tokenizer.pre_tokenize_str(normalized) == theirs.pre_tokenizer.pre_tokenize_str(normalized)
    assert ours.model.ignore_merges == theirs.model.ignore_merges


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("glm4", "HelloWorld don't 1234567", ["HelloWorld", " don", "'t", " ", "123", "456", "7"]),
        ("llama-bpe", "HelloWorld don't 1234567", ["HelloWorld", " don", "'t", " ", "123", "456", "7"]),
        ("minimax-m2", "HelloWorld don't 1234567", ["Hello", "World", " don't", " ", "123", "456", "7"]),
        ("minimax-m2", "中文English混合 x/\n", ["中文English混合", " x", "/\n"]),
        ("kimi-k2", "中文English混合 x/\n", ["中文", "English", "混合", " x", "/\n"]),
        ("kimi-k2", "HelloWorld don't 1234567", ["Hello", "World", " don't", " ", "123", "456", "7"]),
        ("tekken", "HelloWorld don't 123", ["Hello", "World", " don", "'t", " ", "1", "2", "3"]),
        ("deepseek-llm", "a, b1\n中文x 12", ["a", ",", " b", "1", "\n", "中文", "x", " ", "1", "2"]),
        ("deepseek-coder", "a, b1\n中文x 12", ["a", ",", " b", "1", "\n", "中文", "x", " ", "1", "2"]),
        ("deepseek-coder", "x₁ हिन्दी", ["x", "₁", " ", "ह", "ि", "न", "्", "द", "ी"]),
    ],
)
def test_text_is_cut_where_each_model_learned_it(pre, text, expected):
    assert pieces(pre, text) == expected


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_nothing_of_a_text_is_lost_in_cutting(pre):
    for text in HARD:
        normalized = tokenizer_from_gguf(make_byte_level(pre)).backend.normalizer
        assert "".join(pieces(pre, text)) == text, normalized


@pytest.mark.parametrize("pre", ["martian", "default", None])
def test_a_vocabulary_whose_cuts_nobody_knows_is_refused_rather_than_guessed(pre):
    with pytest.raises(TokenizerError, match=r"pre-tokenizer.*known are .*qwen2.*--tokenizer"):
        tokenizer_from_gguf(make_byte_level(pre))


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("tekken", True), ("qwen2", False)])
def test_a_silent_header_begins_texts_as_the_model_expects(pre, begins):
    silent = make_byte_level(pre, **{"tokenizer.ggml.bos_token_id": 0})
    assert tokenizer_from_gguf(silent).encode("AB") == [0, 32, 33][not begins :]
    assert (
        tokenizer_from_gguf({**silent, "tokenizer.ggml.add_bos_token": not begins}).encode("AB") == [0, 32, 33][begins:]
    )


def test_named_chat_templates_are_read_beside_the_default_one():
    named = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "tools"}
    tokenizer = tokenizer_from_gguf(make_byte_level("qwen2", **{"tokenizer.chat_template": "plain"}, **named))
    assert tokenizer.chat_templates == {"default": "plain", "tool_use": "tools"}


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
WORDS = ("▁", "a", "b", "c", "é", "ab", "bc", "abc", "▁a", "▁ab", "ca", "cab", "aa", "bb", "bbc")


def make_sentencepiece(**more):
    """GGUF metadata of a small vocabulary with scores: earlier words are better."""
    special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("  ", USER_DEFINED)]
    entries = [*special, *((f"<0x{byte:02X}>", BYTE) for byte in range(256)), *((word, NORMAL) for word in WORDS)]
    scores = [0.0] * (len(special) + 256) + [-float(rank) for rank in range(len(WORDS))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [text for text, _ in entries],
        "tokenizer.ggml.token_type": [kind for _, kind in entries],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


def texts_of(tokenizer, text):
    return [tokenizer.id_to_token(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def merged_by_score(text):
    """What SentencePiece does: of all neighbors, those join first whose whole has the best score, from the left."""
    parts = list(text)
    while True:
        joined = [
            (WORDS.index(left + right), index)
            for index, (left, right) in enumerate(pairwise(parts))
            if left + right in WORDS
        ]
        if not joined:
            return parts
        _, index = min(joined)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]


def test_pieces_of_sentencepiece_join_by_their_scores():
    tokenizer = tokenizer_from_gguf(make_sentencepiece(**{"tokenizer.ggml.add_space_prefix": False}))
    draw = random.Random(0)
    for _ in range(300):
        text = " ".join("".join(draw.choice("abc") for _ in range(draw.randrange(1, 7))) for _ in range(3))
        assert texts_of(tokenizer, text) == merged_by_score(text.replace(" ", "▁")), text


def test_a_space_comes_before_a_text_unless_the_header_says_no():
    spaced = tokenizer_from_gguf(make_sentencepiece())
    bare = tokenizer_from_gguf(make_sentencepiece(**{"tokenizer.ggml.add_space_prefix": False}))
    assert (texts_of(spaced, "ab"), texts_of(bare, "ab")) == (["▁ab"], ["ab"])
    for tokenizer in (spaced, bare):
        for text in ("ab ca", " ab", "é🙂 \n b"):
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_sentencepiece_text_begins_with_its_token_unless_the_header_says_no():
    assert tokenizer_from_gguf(make_sentencepiece()).encode("ab")[0] == 1
    without = make_sentencepiece(**{"tokenizer.ggml.add_bos_token": False})
    assert tokenizer_from_gguf(without).encode("ab")[0] != 1


def test_characters_outside_of_a_sentencepiece_vocabulary_become_bytes():
    tokenizer = tokenizer_from_gguf(make_sentencepiece(**{"tokenizer.ggml.add_space_prefix": False}))
    assert texts_of(tokenizer, "🙂") == ["<0xF0>", "<0x9F>", "<0x99>", "<0x82>"]
    ids = tokenizer.encode("é🙂", add_special_tokens=False)
    assert b"".join(map(tokenizer.id_to_bytes, ids)) == "é🙂".encode()


def test_tokens_that_a_publisher_defined_are_never_merged_or_cut():
    tokenizer = tokenizer_from_gguf(make_sentencepiece(**{"tokenizer.ggml.add_space_prefix": False}))
    assert texts_of(tokenizer, "a  ab") == ["a", "  ", "ab"]


@pytest.mark.parametrize(("name", "prefix"), [("gemma3", False), ("llama2", True)])
def test_sentencepiece_text_is_prepared_as_the_published_tokenizer_prepares_it(name, prefix):
    ours = tokenizer_from_gguf(make_sentencepiece(**{"tokenizer.ggml.add_space_prefix": prefix})).backend
    theirs = published(name)
    for text in HARD:
        assert ours.normalizer.normalize_str(text) == theirs.normalizer.normalize_str(text)
    for tokens in (["▁a", "▁", "b"], ["<0xC3>", "<0xA9>"], ["a"]):
        assert ours.decoder.decode(tokens) == theirs.decoder.decode(tokens)


@pytest.mark.parametrize("key", ["scores", "token_type"])
def test_a_sentencepiece_vocabulary_without_scores_or_types_is_refused(key):
    metadata = make_sentencepiece()
    del metadata[f"tokenizer.ggml.{key}"]
    with pytest.raises(TokenizerError, match=rf"lacks tokenizer\.ggml\.{key}"):
        tokenizer_from_gguf(metadata)


def test_an_engine_answers_the_same_from_a_file_as_from_its_folder(tiny_family, tmp_path):
    folder = tiny_family("qwen2")
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    answers = []
    for model in (folder, write_gguf(folder, tmp_path / "m.gguf")):
        with LLMEngine(model=str(model), dtype="float32") as engine:
            answers += engine.generate(["Hello there, how are you?"], greedy)
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert answers[0]["text"] == answers[1]["text"]
