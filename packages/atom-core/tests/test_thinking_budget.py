"""A thinking budget: the end mark is all that can come once it is used up."""

from __future__ import annotations

import numpy as np
import pytest

from atom_core.messages import ThinkingBudget
from atom_core.structured_output.thinking import ThinkingParser

TEXTS = ["a", "<think>", "</", "think>", "</think>", " ", "<", "x</think>y"]
IDS = {text: token_id for token_id, text in enumerate(TEXTS)}


class Words:
    """The vocabulary of `TEXTS`, which encodes with the longest token that fits."""

    tokens = [text.encode() for text in TEXTS]  # noqa: RUF012

    def encode(self, text: bytes) -> list[int]:
        ids = []
        while text:
            token_id = max((i for i, t in enumerate(self.tokens) if text.startswith(t)), key=lambda i: len(TEXTS[i]))
            ids.append(token_id)
            text = text[len(self.tokens[token_id]) :]
        return ids


def allowed(parser):
    words = np.zeros(1, dtype=np.int32)
    parser.fill(words)
    return [text for text, token_id in IDS.items() if int(words[0]) >> token_id & 1]


def make_parser(max_tokens=2, is_open=False, inner=None):
    return ThinkingParser(ThinkingBudget(max_tokens, "<think>", "</think>", is_open), Words(), inner)


def feed(parser, *texts):
    for text in texts:
        parser.accept(IDS[text])
    return parser


def test_the_end_mark_is_forced_and_then_everything_is_free():
    parser = feed(make_parser(), "<think>", "a")
    assert allowed(parser) == TEXTS
    feed(parser, "a")
    assert allowed(parser) == ["</think>"]
    assert not parser.is_accepting
    feed(parser, "</think>")
    assert parser.is_over
    assert allowed(parser) == TEXTS


def test_a_mark_of_several_tokens_is_forced_in_their_order():
    budget = ThinkingBudget(1, "<think>", "</think>x</think>ya", is_open=True)
    parser = feed(ThinkingParser(budget, Words()), "a")
    for text in ("</think>", "x</think>y", "a"):
        assert not parser.is_over
        assert allowed(parser) == [text]
        feed(parser, text)
    assert parser.is_over
    assert allowed(parser) == TEXTS


def test_a_mark_that_has_begun_is_completed():
    parser = feed(make_parser(is_open=True), "a", "</")
    assert allowed(parser) == ["think>"]
    assert feed(parser, "think>").is_over


@pytest.mark.parametrize("texts", [["</think>"], ["</", "think>"], ["x</think>y"]])
def test_thinking_that_ends_by_itself_is_left_alone(texts):
    parser = feed(make_parser(max_tokens=3), " ", "<think>", *texts)
    assert parser.is_over
    assert allowed(feed(parser, "a", "a", "a")) == TEXTS


def test_a_text_that_does_not_think_is_free():
    parser = feed(make_parser(max_tokens=0), "a", "<think>", "a")
    assert parser.is_over
    assert allowed(parser) == TEXTS


def test_a_budget_of_nothing_ends_the_thinking_at_once():
    assert allowed(make_parser(max_tokens=0, is_open=True)) == ["</think>"]
    assert allowed(feed(make_parser(max_tokens=0), "<think>")) == ["</think>"]


class Grammar:
    """Allows what it is told to."""

    is_accepting, error = False, None

    def __init__(self, *texts):
        self.texts = texts
        self.accepted = []

    def fill(self, words):
        words.fill(sum(1 << IDS[text] for text in self.texts))

    def accept(self, token_id):
        self.accepted.append(token_id)


def test_a_grammar_goes_on_beside_it():
    grammar = Grammar("a", "</think>")
    parser = make_parser(max_tokens=1, inner=grammar)
    assert allowed(parser) == ["a", "</think>"]
    feed(parser, "<think>", "a")
    assert allowed(parser) == ["</think>"]
    feed(parser, "</think>")
    assert allowed(parser) == ["a", "</think>"]
    assert grammar.accepted == [IDS["<think>"], IDS["a"], IDS["</think>"]]


def test_the_end_mark_waits_until_the_grammar_lets_it_begin():
    grammar = Grammar("a")
    parser = make_parser(max_tokens=1, is_open=True, inner=grammar)
    feed(parser, "a")
    assert allowed(parser) == ["a"]
    feed(parser, "a")
    grammar.texts = ("a", "</think>")
    assert allowed(parser) == ["</think>"]
    assert feed(parser, "</think>").is_over
    assert allowed(parser) == ["a", "</think>"]
