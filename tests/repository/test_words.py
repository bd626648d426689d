"""Docstrings are sentences about what things are, and literals are written as they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from source_tree import nodes, product_files, short, test_files, tree

THIS = Path(__file__)
# A description that goes on from a name it does not repeat: "name: of the layer", "ranks: those that share it", or a
# docstring "Of the layer".
_FRAGMENT = re.compile(r"^\s*[`*]*\w+[`*]*(?:, [`*]*\w+[`*]*)*: (?:of|those) [\w`]")
# A description that says only what a thing has, or where it is: "bytes: on each device". Errors have circumstances.
_CIRCUMSTANCE = re.compile(r"^ +\w+(?:, \w+)*(?<!Error): (?:by|for|from|on|the same|theirs|to|with)\b")
# A sentence that begins with what its subject belongs to: "Of two layers the first one ...".
_INVERTED = re.compile(r'(?:^\s*(?:# |""")?|[.;:] )Of [a-z`]')
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def docstrings(module: ast.Module) -> tuple[str, ...]:
    """All descriptions of a file."""
    found = (ast.get_docstring(node) for node in nodes(module) if isinstance(node, _DOCUMENTED))
    return tuple(text for text in found if text)


def fragments(module: ast.Module) -> Iterator[str]:
    """Lines of docstrings that describe a thing by what it belongs to alone."""
    for text in docstrings(module):
        lines = text.splitlines()
        yield from (line.strip() for line in lines[:1] if line.startswith("Of "))
        yield from (line.strip() for line in lines if _FRAGMENT.match(line))


def circumstances(module: ast.Module) -> Iterator[str]:
    """Lines of docstrings that begin to describe a thing with a preposition, or by another thing."""
    for text in docstrings(module):
        yield from (line.strip() for line in text.splitlines() if _CIRCUMSTANCE.match(line))


def starred_tables(module: ast.Module) -> Iterator[int]:
    """Lines with ``*((a, b), (c, d))`` inside another literal, where ``(a, b), (c, d)`` says the same."""
    for node in nodes(module):
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple):
            elements = node.value.elts
            if elements and all(isinstance(element, ast.Tuple) for element in elements):
                yield node.lineno


def found(look: Callable[[ast.Module], Iterator[Any]]) -> list[str]:
    return [f"{short(file)}: {one}" for file in [*product_files(), *test_files()] for one in look(tree(file))]


def test_no_description_says_only_what_a_thing_belongs_to():
    assert found(fragments) == []


def test_descriptions_say_what_a_thing_is_before_they_say_where_it_is():
    assert found(circumstances) == []


def test_no_literal_is_spread_into_another_to_keep_the_formatter_away():
    assert found(starred_tables) == []


def test_no_sentence_begins_with_what_its_subject_belongs_to():
    lines = ((file, line) for file in [*product_files(), *test_files()] for line in file.read_text().splitlines())
    # This file has such sentences on purpose.
    assert [f"{short(file)}: {line}" for file, line in lines if _INVERTED.search(line) and file != THIS] == []


@pytest.mark.parametrize(
    ("line", "is_inverted"),
    [
        ("    Of two layers the first one counts.", True),
        ("# Of two layers the first one counts.", True),
        ('    """A step. Of two layers the first one counts."""', True),
        ("    The first one of two layers counts.", False),
        ("    rows = Shard.Of (1)", False),
    ],
)
def test_inverted_sentences_are_told_from_others(line: str, is_inverted: bool):
    assert bool(_INVERTED.search(line)) is is_inverted


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('def f():\n    """Of a layer."""', 1),
        ('class A:\n    """A thing.\n\n    Attributes:\n        name, `size`: of `Layer`.\n    """', 1),
        ('def f():\n    """A thing.\n\n    Args:\n        ranks: those that share it.\n    """', 1),
        ('def f():\n    """Offsets of rows: of all blocks, where each begins."""', 0),
        ('def f():\n    """A thing.\n\n    Args:\n        name: the name of its layer.\n    """', 0),
    ],
)
def test_fragments_are_told_from_sentences(source: str, count: int):
    assert len(list(fragments(ast.parse(source)))) == count


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("    num_bytes: on each device.", 1),
        ("    short: the same over the short one.", 1),
        ("    num_bytes: bytes on each device.", 0),
        ("    APIError, ConfigError: with status 499.", 0),
    ],
)
def test_circumstances_are_told_from_descriptions(line: str, count: int):
    assert len(list(circumstances(ast.parse(f'def f():\n    """A thing.\n\n    Args:\n    {line}\n    """')))) == count


@pytest.mark.parametrize(
    ("source", "count"), [("x = (*((1, 2), (3, 4)), 5)", 1), ("x = (*((a, 1) for a in b), *c)", 0), ("f(*(a, b))", 0)]
)
def test_spread_literals_are_told_from_other_spreads(source: str, count: int):
    assert len(list(starred_tables(ast.parse(source)))) == count
