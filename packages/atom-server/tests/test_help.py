"""`--help` of every command is true: what its examples say can be said, and the flags that it names are there."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator

import pytest

from atom_server.cli.main import build_parser


def commands_of(parser: argparse.ArgumentParser, name: str = "atom") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command with its parser, the ones above first."""
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from commands_of(below, f"{name} {word}")


PARSERS = dict(commands_of(build_parser()))
FLAGS = {flag for parser in PARSERS.values() for action in parser._actions for flag in action.option_strings}
every_command = pytest.mark.parametrize("name", PARSERS)


def examples_of(parser: argparse.ArgumentParser) -> list[str]:
    """The calls of `atom` in its examples, with what is said of them."""
    text = (parser.epilog or "").replace("\\\n", "")
    return re.findall(r"^ +(atom(?: .+)?)$", text, re.MULTILINE)


def words_of(example: str) -> list[str]:
    """What `atom` is given: spaces and words of what it does may follow, or where its output goes."""
    call = re.split(r" {2,}(?!-)| [>|] ", example, maxsplit=1)[0]
    return shlex.split(call)[1:]


@every_command
def test_help_says_what_a_command_does_and_shows_how(name: str):
    parser = PARSERS[name]
    text = parser.format_help()
    assert text.startswith(f"usage: {name}")
    assert parser.description
    assert parser.description in text
    if name.count(" ") == 1:
        assert any(example.startswith(name) for example in examples_of(parser))


@every_command
def test_every_example_is_a_command_line_that_is_taken(name: str, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "atom.yaml").touch()
    for example in examples_of(PARSERS[name]):
        assert build_parser().parse_args(words_of(example)).run


@every_command
def test_every_flag_that_help_names_is_one(name: str):
    parser = PARSERS[name]
    texts = (parser.usage, parser.description, parser.epilog, *(action.help for action in parser._actions))
    named = re.findall(r"(?<![\w-])--[a-z][\w-]*\w", "\n".join(text for text in texts if text))
    assert set(named) <= FLAGS


@every_command
def test_every_argument_is_explained(name: str):
    subcommands = argparse._SubParsersAction
    assert [each.dest for each in PARSERS[name]._actions if not each.help and not isinstance(each, subcommands)] == []
