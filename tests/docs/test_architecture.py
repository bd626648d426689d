"""docs/architecture.md says where things happen: each file is there, and has the name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TABLE = PAGE.partition("## Where it happens\n")[2].partition("\n## ")[0]
PLACES = re.findall(r"^\|.*\| `(\w[\w/]+\.py)` \| `(\w+)` \|$", TABLE, re.MULTILINE)


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_what_the_page_names_is_there(file: str, name: str) -> None:
    package = file.partition("/")[0].replace("_", "-")
    tree = ast.parse((ROOT / "packages" / package / "src" / file).read_text())
    defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assert name in defined


def test_the_page_answers_what_a_newcomer_asks() -> None:
    assert len(PLACES) == len(TABLE.strip().splitlines()) - 2
    for question in ("sliding window", "captured whole", "penalty"):
        assert question in TABLE
