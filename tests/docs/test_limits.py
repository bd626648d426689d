"""Limits that the guides give as numbers are those of the code."""

from __future__ import annotations

from pathlib import Path

from atom_core.structured_output import compiler, work_budget
from atom_core.structured_output.constraints import grammar, work
from atom_core.structured_output.judge.limits import LIMITS as JUDGE
from atom_core.structured_output.llguidance import short_parser, trial
from atom_core.structured_output.xgrammar import limits
from atom_server.output.enforcement import MAX_CALLS
from atom_server.output.notation import FORMATS
from atom_server.responses.store import MAX_RESPONSES

ROOT = Path(__file__).parents[2]
NUMBERS = {16: "sixteen"}


def page(path: str) -> str:
    return " ".join((ROOT / path).read_text().split())


def test_limits_of_structured_output():
    text = page("docs/structured-output.md")
    assert f"{grammar.MAX_BYTES >> 10} KB for a constraint, {grammar.MAX_DEPTH} levels" in text
    assert f"{grammar.MAX_REGEX_LENGTH:,} characters of a pattern, {grammar.MAX_CHOICES:,} choices" in text
    assert f"{grammar.MAX_TAGS} tags." in text
    assert f"stand for more than {work.MAX_PATTERN_SIZE:,} characters" in text
    assert f"`multipleOf` with more than {work.MAX_REMAINDERS:,} remainders" in text
    assert f"{JUDGE.cpu_seconds:g} second of processor time and {JUDGE.memory_bytes >> 20} MiB" in text
    assert f"follows a text in it for {trial.NUM_STEPS} steps" in text
    assert f"schemas of up to {limits.MAX_OBJECTS} objects" in text
    assert f"{work_budget.SECONDS_PER_TOKEN * 1000:g} ms for each token" in text
    assert f"{compiler.MAX_GRAMMARS} grammars and {compiler.MAX_BYTES >> 20} MiB of them" in text
    assert f"A model has at most {short_parser.MAX_VOCABULARIES} short vocabularies" in text


def test_limits_of_tools():
    assert f"makes at most {MAX_CALLS} calls" in page("docs/tools.md")
    assert f"tool calls in [{NUMBERS[len(FORMATS)]} formats]" in page("README.md")


def test_every_format_of_tool_calls_has_a_row():
    text = page("docs/tools.md")
    assert [name for name in FORMATS if f"`{name}`" not in text] == []


def test_limits_of_the_server():
    text = page("packages/atom-server/README.md")
    assert f"the newest {MAX_RESPONSES} are kept" in text
