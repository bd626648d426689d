"""Masks from a vocabulary in which tokens that a pattern cannot tell apart are one: the same masks, sooner."""

from __future__ import annotations

import contextlib
import random
import string
import time
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from atom_core import StructuredOutputParams
from atom_core.structured_output.backend import Parser
from atom_core.structured_output.llguidance import short_parser
from atom_core.structured_output.llguidance.alphabet import (
    UnknownNotationError,
    same_characters,
    sets_of_lark,
    sets_of_pattern,
)
from atom_core.structured_output.llguidance.backend import LLGuidanceBackend
from atom_core.structured_output.llguidance.short_parser import ShortParser
from atom_core.structured_output.vocabulary import Vocabulary

LOWER = string.ascii_lowercase
END = 0
ATOMS = ["[a-z]", "[A-F0-9]", r"\w", r"\d", r"\s", "[^a-z]", "a", "the", " ", ", ", ".", r"\.", "é", r"\D", r"[\]x-]"]
REPEATS = ["*", "+", "?", "{2}", "{1,3}", "{0,40}", "{3,}"]


def make_vocabulary() -> Vocabulary:
    """An end, every byte, and words with and without a space before them; by itself it writes short ones only."""
    rng = random.Random(0)
    words = ["".join(rng.choices(LOWER, k=rng.randrange(2, 7))) for _ in range(1200)]
    words += [word.capitalize() for word in words[:200]]
    texts = dict.fromkeys([*words, *(f" {word}" for word in words), *(f"{number}" for number in range(10, 100)), ", "])
    tokens = [b"<end>", *(bytes([byte]) for byte in range(256)), *(text.encode() for text in texts)]
    ids = {token: token_id for token_id, token in enumerate(tokens)}

    def encode(text: str | bytes) -> list[int]:
        rest = text.encode() if isinstance(text, str) else text
        found = []
        while rest:
            length = next(length for length in range(3, 0, -1) if rest[:length] in ids)
            found.append(ids[rest[:length]])
            rest = rest[length:]
        return found

    made = SimpleNamespace(tokens=tokens, special_token_ids=[END], encode=encode, split=lambda text: [text])
    return cast(Vocabulary, made)


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(make_vocabulary(), [END])


@pytest.fixture(scope="module")
def plain() -> LLGuidanceBackend:
    """Never takes a short vocabulary."""
    made = LLGuidanceBackend(make_vocabulary(), [END])
    cast(Any, made)._short.for_constraint = lambda kind, text: None
    return made


def mask_of(parser: Parser, num_tokens: int) -> np.ndarray:
    words = np.zeros(-(-num_tokens // 32), dtype=np.int32)
    parser.fill(words)
    return np.unpackbits(words.view(np.uint8), count=num_tokens, bitorder="little").astype(bool)


def same_walk(constraint: dict[str, str], short: LLGuidanceBackend, plain: LLGuidanceBackend, steps: int) -> int:
    """Follow random tokens with both, and count the steps; the masks must be the same."""
    params = StructuredOutputParams(**cast(Any, constraint))
    parsers = [backend.compile(params).start() for backend in (short, plain)]
    rng = random.Random(1)
    for step in range(steps):
        masks = [mask_of(parser, len(short._short._vocabulary.tokens)) for parser in parsers]
        if any(parser.error for parser in parsers):
            return step
        assert (masks[0] == masks[1]).all(), (constraint, step)
        allowed = np.flatnonzero(masks[0])[1 if masks[0][END] else 0 :]
        if not len(allowed):
            return step
        token_id = int(rng.choice(allowed))
        for parser in parsers:
            parser.accept(token_id)
        assert parsers[0].is_accepting == parsers[1].is_accepting
    return steps


def make_pattern(rng: random.Random, depth: int = 0) -> str:
    kind = rng.random()
    if depth > 2 or kind < 0.3:
        return rng.choice(ATOMS)
    if kind < 0.6:
        return make_pattern(rng, depth + 1) + make_pattern(rng, depth + 1)
    if kind < 0.7:
        return f"({make_pattern(rng, depth + 1)}|{make_pattern(rng, depth + 1)})"
    return f"({make_pattern(rng, depth + 1)}){rng.choice(REPEATS)}"


def test_masks_are_those_of_the_whole_vocabulary_for_random_patterns(plain, monkeypatch):
    backend = LLGuidanceBackend(make_vocabulary(), [END])
    monkeypatch.setattr(short_parser, "MAX_VOCABULARIES", 1000)
    monkeypatch.setattr(short_parser, "LARGEST_SHARE", 1.0)
    rng = random.Random(2)
    patterns = [rng.choice(["", "", "(?i)"]) + make_pattern(rng) for _ in range(150)]
    assert sum(same_walk({"regex": pattern}, backend, plain, 12) for pattern in patterns) > 500


@pytest.mark.parametrize(
    "constraint",
    [
        {"regex": "([a-z]+ ){1,6}"},
        {"regex": "([a-z]+, ){2,6}[xyz]!"},
        {"grammar": 'start: item{1,5} "."\nitem: /[A-Z][a-z]*/ " "'},
        {"grammar": 'root ::= ([a-z]+ " ")+ "stop"'},
        {"structural_tag": '{"type": "structural_tag", "format": {"type": "regex", "pattern": "([a-z]+ ){1,6}"}}'},
    ],
    ids=["words", "a fixed end", "Lark", "GBNF", "a structural tag"],
)
def test_masks_stay_the_same_up_to_the_last_repeat(backend, plain, constraint):
    kind, text = next(iter(constraint.items()))
    compiled = backend.compile(StructuredOutputParams(**{kind: text}))
    assert isinstance(compiled.start(), ShortParser)
    assert same_walk(constraint, backend, plain, 60) > 5


def test_text_without_a_choice_keeps_the_tokenizers_own_tokens(backend, plain, monkeypatch):
    monkeypatch.setattr(short_parser, "LARGEST_SHARE", 1.0)
    word = backend._short._vocabulary.tokens[300].decode()
    pattern = f"{word} {word}( [a-z]+){{1,9}}"
    assert isinstance(backend.compile(StructuredOutputParams(regex=pattern)).start(), ShortParser)
    assert same_walk({"regex": pattern}, backend, plain, 12) > 3


def test_a_pattern_of_small_letters_leaves_few_tokens(backend):
    short = backend._short.for_constraint("regex", "([a-z]+ ){1,400}")
    assert short is not None
    assert short.num_tokens < len(short.short_ids) / 4
    assert len(np.unique(short.short_ids)) == short.num_tokens


def test_a_json_schema_has_no_short_vocabulary(backend):
    assert backend._short.for_constraint("json", '{"type": "object"}') is None
    assert not isinstance(backend.compile(StructuredOutputParams(json={"type": "object"})).start(), ShortParser)


def test_only_so_many_short_vocabularies_are_made(plain, monkeypatch):
    monkeypatch.setattr(short_parser, "MAX_VOCABULARIES", 2)
    vocabularies = short_parser.ShortVocabularies(make_vocabulary(), [END])
    made = [vocabularies.for_constraint("regex", f"[a-{last}]+") for last in "xyz"]
    assert [one is None for one in made] == [False, False, True]
    assert vocabularies.for_constraint("regex", "([a-x]+){2}") is made[0]


def parts_of(sets: Any) -> set[str]:
    """The parts, but for the one that holds all that is never named."""
    return {part for part in same_characters(sets) if "\x01" not in part}


@pytest.mark.parametrize(
    ("pattern", "parts"),
    [
        ("[a-z]+", {LOWER}),
        ("[a-z]+ the", {" ", "t", "h", "e", LOWER.replace("t", "").replace("h", "").replace("e", "")}),
        (r"\d{3,4}-\x41\u{42}", {string.digits, "-", "A", "B"}),
        ("[^ab]", {"a", "b"}),
        ("[]x]", {"]", "x"}),
        ("[a-é]", {LOWER + "{|}~\x7f"}),
        ("(?i)b", {"Bb"}),
        (".", {"\n", "\r"}),
        (r"(?:a|\.)", {"a", "."}),
        ("a{2,}b{,3}", {"a", "b", "{", ",", "3", "}"}),
    ],
)
def test_a_pattern_tells_apart_what_it_names(pattern, parts):
    assert parts_of(sets_of_pattern(pattern)) == parts


def test_a_grammar_tells_apart_what_its_texts_and_patterns_name():
    grammar = '%llguidance {}\n// a comment\nstart: word{1,4} "x\\n"\nword: /[0-9]/ | TAIL\nTAIL: /q/ & ~/3/'
    assert parts_of(sets_of_lark(grammar)) == {"x", "\n", "q", "3", "012456789"}


@pytest.mark.parametrize(
    "pattern", [r"\p{L}", "[[:alpha:]]", "[a-z&&[^b]]", "(?P<n>a)", "a(?i)b", r"\bword", r"[a-\d]"]
)
def test_a_pattern_that_is_not_understood_is_left_to_the_whole_vocabulary(backend, pattern):
    with pytest.raises(UnknownNotationError):
        list(sets_of_pattern(pattern))
    assert backend._short.for_constraint("regex", pattern) is None


RANGES = "".join(f"[{chr(low)}-{chr(high)}]" for low in range(48, 91) for high in range(97, 123))


@pytest.mark.parametrize("pattern", ["{" + "1" * 8_000, "[a" * 4_000, "(" * 8_000, "\\x{" + "1" * 8_000, RANGES])
def test_hostile_patterns_are_read_at_once(pattern):
    started = time.thread_time()
    with contextlib.suppress(UnknownNotationError):
        same_characters(sets_of_pattern(pattern))
    with contextlib.suppress(UnknownNotationError):
        same_characters(sets_of_lark(f'start: /{pattern}/ "{pattern}"'))
    assert time.thread_time() - started < 2


@pytest.mark.parametrize(
    "grammar",
    [
        'start: "a".."z"',
        'start: "a" .. "z"',
        'start: "A"i',
        "start: /a/i",
        "start: <[12]>",
        "start: %json {}",
        '{"a": "b"}',
        r'start: "\w"',
        "%import common.WORD\nstart: WORD",
    ],
)
def test_a_grammar_that_is_not_understood_is_left_to_the_whole_vocabulary(backend, grammar):
    with pytest.raises(UnknownNotationError):
        list(sets_of_lark(grammar))
    assert backend._short.for_constraint("grammar", grammar) is None
