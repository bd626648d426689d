"""Vocabularies of tiktoken are read as tiktoken reads them, by the pattern that their publisher printed."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from atom_core.tokenization import Tokenizer, TokenizerError
from atom_core.tokenization.byte_level import byte_level_bytes

# The pattern in the tokenizer's code that is published with Kimi-K2.
LETTERS = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}*{LETTERS}+{SHORT}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{CAPITALS}+{LETTERS}*{SHORT}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
HARD = [
    "",
    "Hello  world\n\n\t x  ",
    "½ Ⅷ ٣٤ 123 4567 1234567",
    "漢字かな交じり文 🙂👨‍👩‍👧 々〆 中文english混合abc 한국어 カタカナ",
    " naïve café 'll DON'T I'M we'Ve don't'sx",
    "def f(x):\n    return x**2\r\n\r\n  # done",
    "\u200b\u00a0 zero \r\n\r\n ",
    "HelloWorld XMLHttpRequest iPhone ÀÉÎ ǅ aǅb",
    "a/b//c\n//\n/ x $100 €50 +1 <=> ^~| `x`",
    "e\u0301 NFC \u212b ﬁ Ａｂｃ １２３ ！？",
    "Привет, мир! Ελληνικά עברית العربية हिन्दी ไทย",
]
NAMED = {"[BOS]": 0, "[EOS]": 1, "<|im_end|>": 2, "<|tool_call_begin|>": 12}
PLAIN = "<|tool_call_begin|>"


def random_texts(seed: int, count: int) -> list[str]:
    source = random.Random(seed)
    ranges = (
        (0x20, 0x7F),
        (0x20, 0x7F),
        (0xA0, 0x250),
        (0x370, 0x600),
        (0x900, 0x980),
        (0x3000, 0x3100),
        (0x4E00, 0x4E80),
    )
    letters = [chr(code) for first, last in ranges for code in range(first, last)] + list(" \n\r\t'") * 20
    return ["".join(source.choices(letters, k=source.randrange(1, 40))) for _ in range(count)]


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    """A vocabulary that was learned from texts which the pattern cuts."""
    learner = tokenizers.Tokenizer(models.BPE())
    cut = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    learner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator(
        [*HARD * 3, *random_texts(1, 400)],
        trainers.BpeTrainer(vocab_size=1500, initial_alphabet=alphabet, show_progress=False),
    )
    return {byte_level_bytes(token): rank for token, rank in learner.get_vocab().items()}


@pytest.fixture
def folder(ranks, tmp_path) -> Path:
    lines = [
        f"{base64.b64encode(token).decode()} {rank}" for token, rank in sorted(ranks.items(), key=lambda at: at[1])
    ]
    (tmp_path / "tiktoken.model").write_text("\n".join(lines) + "\n")
    first = len(ranks)
    config = {
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "tokenizer_class": "TikTokenTokenizer",
        "added_tokens_decoder": {
            str(first + at): {"content": name, "special": name != PLAIN} for name, at in NAMED.items()
        },
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture
def published(ranks) -> tiktoken.Encoding:
    first = len(ranks)
    special = {f"<|reserved_token_{first + at}|>": first + at for at in range(256) if at not in NAMED.values()}
    special |= {name: first + at for name, at in NAMED.items()}
    return tiktoken.Encoding("kimi", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)


def test_tokens_are_those_of_tiktoken(folder, published):
    tokenizer = Tokenizer.from_folder(folder)
    for text in [*HARD, *random_texts(2, 3000)]:
        expected = published.encode(text)
        assert tokenizer.encode(text) == expected, repr(text)
        assert tokenizer.decode(expected) == text


def test_merges_of_a_vocabulary_that_nobody_learned_are_those_of_tiktoken(folder, published, ranks):
    """Ranks in any order: pieces merge otherwise than they were learned."""
    source = random.Random(3)
    single = [token for token in ranks if len(token) == 1]
    longer = [token for token in ranks if len(token) > 1]
    source.shuffle(longer)
    mixed = {token: rank for rank, token in enumerate([*single, *longer])}
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in mixed.items()]
    (folder / "tiktoken.model").write_text("\n".join(lines))
    special = dict(published._special_tokens)
    expected = tiktoken.Encoding("mixed", pat_str=PATTERN, mergeable_ranks=mixed, special_tokens=special)
    tokenizer = Tokenizer.from_folder(folder)
    for text in [*HARD, *random_texts(4, 1000)]:
        assert tokenizer.encode(text) == expected.encode(text), repr(text)


def test_a_piece_that_is_a_token_needs_no_merges(folder):
    """'bc' merges first, after which nothing gives 'abcd'."""
    tokens = [b"a", b"b", b"c", b"d", b"bc", b"ab", b"cd", b"abcd"]
    mixed = {token: rank for rank, token in enumerate(tokens)}
    lines = [f"{base64.b64encode(token).decode()} {rank}" for token, rank in mixed.items()]
    (folder / "tiktoken.model").write_text("\n".join(lines))
    expected = tiktoken.Encoding("small", pat_str=PATTERN, mergeable_ranks=mixed, special_tokens={})
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode("abcd") == expected.encode("abcd") == [7]
    assert tokenizer.encode("abcdd") == expected.encode("abcdd") == [0, 4, 3, 3]


def test_special_tokens_have_the_ids_behind_the_ranks(folder, published, ranks):
    tokenizer = Tokenizer.from_folder(folder)
    text = f"[BOS]Hi<|im_end|><|tool_call_begin|><|reserved_token_{len(ranks) + 255}|>"
    ids = tokenizer.encode(text)
    assert ids == published.encode(text, allowed_special="all")
    assert tokenizer.vocab_size == len(ranks) + 256 == published.n_vocab
    assert tokenizer.decode(ids) == "Hi<|tool_call_begin|>"
    assert tokenizer.eos_token_id == len(ranks) + 1
    assert [tokenizer.id_to_bytes(one) for one in published.encode("漢字 x")] == [
        published.decode_single_token_bytes(one) for one in published.encode("漢字 x")
    ]


def test_a_tokenizer_json_beside_it_is_what_counts(folder, tiny_llama):
    (folder / "tokenizer.json").write_bytes((tiny_llama / "tokenizer.json").read_bytes())
    assert Tokenizer.from_folder(folder).encode("Hello") == Tokenizer.from_folder(tiny_llama).encode("Hello")


@pytest.mark.parametrize(
    ("auto_map", "named"),
    [({}, "names no code"), ({"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}, "'tokenization_qwen'")],
)
def test_a_vocabulary_whose_pattern_is_unknown_is_refused(folder, auto_map, named):
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
    with pytest.raises(TokenizerError, match=f"{named}.*known are tokenization_kimi"):
        Tokenizer.from_folder(folder)


def test_code_of_another_repository_is_known_by_its_module(folder):
    named = {"AutoTokenizer": "moonshotai/Kimi-K2--tokenization_kimi.TikTokenTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": named}))
    assert Tokenizer.from_folder(folder).encode("Hello")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("!!! 3", "line 4 is no token"),
        ("QQ==", "line 4 is no token"),
        ("QQ== x", "line 4: expected a new token with rank 3"),
        ("QQ== 9", "line 4: expected a new token with rank 3"),
        ("YQ== 3", "line 4: expected a new token with rank 3"),
    ],
)
def test_a_broken_line_is_named(line, message, folder):
    (folder / "tiktoken.model").write_text(f"YQ== 0\nYg== 1\nYw== 2\n{line}\n")
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_folder(folder)
