"""docs/migrating.md is right about flags and variables."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from atom_core import EngineArgs
from atom_core.config import ConfigError, options_of
from atom_kernels.known_variables import OF_NO_EFFECT, READ
from atom_server import ServerOptions
from atom_server.cli.main import build_parser

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()
# What the README of ROCm/ATOM measures with.
UPSTREAMS_BENCHMARK = """
--model=M --backend=vllm --base-url=http://localhost:8000 --dataset-name=random --random-input-len=1024
--random-output-len=1024 --random-range-ratio 0.8 --num-prompts=1280 --max-concurrency=128 --request-rate=inf
--ignore-eos --save-result --percentile-metrics=ttft,tpot,itl,e2el --result-dir=./ --result-filename=r.json
"""


def section(title: str) -> str:
    [text] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return text


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines][2:]


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"`(--?[a-zA-Z][\w-]*)", text))


def parser_of(*command: str) -> argparse.ArgumentParser:
    """The parser of a sub-command."""
    parser = build_parser()
    for name in command:
        [commands] = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        parser = commands.choices[name]
    return parser


def known_flags(*command: str) -> set[str]:
    return {flag for action in parser_of(*command)._actions for flag in action.option_strings}


@pytest.mark.parametrize("title", ["Flags of the engine", "Flags of the server"])
def test_every_flag_of_the_tables_is_one_of_serve(title: str):
    found = {flag for row in rows(section(title)) for flag in flags_in(" ".join([row[0], row[-1]]))}
    assert len(found) > 1
    assert sorted(found - known_flags("serve")) == []


def test_every_flag_of_engine_and_server_is_named():
    named = {flag.replace("_", "-") for flag in flags_in(PAGE)}
    flags = {entry.flag for struct in (EngineArgs, ServerOptions) for entry in options_of(struct)}
    assert sorted(flags - named) == []


def test_flags_that_are_said_to_be_unknown_are():
    [text] = re.findall(r"^Flags that only later versions .*?are unknown", PAGE, re.MULTILINE | re.DOTALL)
    assert flags_in(text)
    assert flags_in(text) & known_flags("serve") == set()


@pytest.mark.parametrize("row", rows(section("Flags of the engine")), ids=lambda row: row[0])
def test_what_is_said_to_be_refused_is(row: list[str]):
    if "refused" in row[2] and "CPU" not in row[2]:
        names = [flag.lstrip("-").replace("-", "_") for flag in flags_in(row[0]) if flag.startswith("--")]
        asked = [entry for entry in options_of(EngineArgs) if entry.name in names]
        assert asked
        for entry in asked:
            [choices] = re.findall(r"((?:`\w+`(?:, )?)+) is \*\*refused", row[2]) or [""]
            values = re.findall(r"`(\w+)`", choices) or [{"switch": True, "integer": 2}[entry.kind]]
            for value in values:
                with pytest.raises(ConfigError, match="is not supported"):
                    EngineArgs(**{entry.name: value})


def test_the_benchmark_of_the_original_runs_as_it_is():
    assert build_parser().parse_args(["bench", "serve", *UPSTREAMS_BENCHMARK.split()]).num_prompts == 1280


def test_flags_of_the_benchmark_that_are_said_to_be_missing_are_refused():
    [text] = re.findall(
        r"Its flags are .*? without (.*?): the command line refuses them", section("Benchmarks"), re.DOTALL
    )
    missing = flags_in(text)
    assert len(missing) > 3
    assert missing & known_flags("bench", "serve") == set()


def test_variables_are_read_or_of_no_effect_as_the_table_says():
    table = rows(section("Environment"))
    variables = {name: row[1] for row in table for name in re.findall(r"ATOM_[A-Z0-9_]+", row[0])}
    assert len(variables) > 5
    for name, here in variables.items():
        assert name in (OF_NO_EFFECT if "no effect" in here else READ), name
