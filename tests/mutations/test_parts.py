"""The parts that mistakes are put into: their files and tests exist, and what is called harmless could be made."""

from __future__ import annotations

import ast
from collections import Counter

import pytest

from tools.mutate.parts import PARTS
from tools.mutate.parts.part import PACKAGES, Part
from tools.mutate.sampling import spread

KINDS_IN_ADAPTERS = {
    "arguments",
    "choice",
    "comparison",
    "enum",
    "layout",
    "left out",
    "limit",
    "off by one",
    "scale",
    "skipped packing",
    "truth",
}
KINDS_IN_ALL_OTHERS = {
    "arguments",
    "arithmetic",
    "comparison",
    "condition",
    "default",
    "function",
    "key",
    "left out",
    "number",
    "step left out",
    "truth",
    "went on",
}


@pytest.fixture(params=PARTS)
def part(request: pytest.FixtureRequest) -> Part:
    return PARTS[request.param]


def test_there_are_enough_mistakes_of_every_kind(part: Part):
    kinds = Counter(mutation.kind for mutation in part.mutations)
    # Functions of sampling have no defaults.
    others = KINDS_IN_ALL_OTHERS - ({"default"} if part.name == "sampler" else set())
    assert set(kinds) == (KINDS_IN_ADAPTERS if part.name == "adapters" else others)
    assert len(part.mutations) > 500


def test_every_pattern_finds_files_and_every_test_file_exists(part: Part):
    owners = {path: pattern for pattern in reversed(part.files) for path in PACKAGES.glob(pattern)}
    assert set(owners.values()) == set(part.files)
    assert [test for tests in part.tests_of_file.values() for test in tests if not test.is_file()] == []


def test_every_harmless_mistake_is_still_one_that_could_be_made(part: Part):
    reasons = Counter(part.reason_of(mutation) for mutation in part.mutations)
    assert [reason for reason in part.harmless.values() if not reasons[reason]] == []


def test_no_file_is_in_two_parts():
    files = Counter(path for part in PARTS.values() for path in part.tests_of_file)
    assert [path for path, count in files.items() if count > 1] == []


def test_every_mistake_is_a_program_and_another_one(part: Part):
    for mutation in spread(part.mutations, 100):
        ast.parse(mutation.apply())
        assert mutation.apply() != mutation.path.read_text(), str(mutation)
