"""docs/recipes: commands are ones that `atom` takes, and plans are what `atom plan` prints."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from atom_core import EngineArgs
from atom_server.cli.main import build_parser

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "recipes"
PAGES = sorted(FOLDER.glob("*.md"))


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recipe_plans", ROOT / "tools" / "recipe_plans.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    return generator


GENERATOR = load_generator()


def commands_of(page: Path) -> list[list[str]]:
    """What `atom` gets on a page; numbers stand in the place of variables."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    filled = (re.sub(r"\$\(\(.*?\)\)|\$\w+", "8", line) for line in lines)
    return [shlex.split(line)[1:] for line in filled if line.startswith("atom ")]


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return build_parser()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_one_that_atom_takes(page: Path, parser: argparse.ArgumentParser):
    commands = commands_of(page)
    assert {command[0] for command in commands} >= {"serve", "bench"}
    for command in commands:
        args = parser.parse_args(command)
        if command[0] == "serve":
            EngineArgs.from_cli_args(args, leave_out=["port"])


def test_each_recipe_has_a_plan_for_the_model_that_it_serves():
    assert sorted(GENERATOR.PLANS) == [page.stem for page in PAGES if page.stem != "index"]
    for name, (model, _, flags) in GENERATOR.PLANS.items():
        text = (FOLDER / f"{name}.md").read_text()
        assert f"atom serve --model {model}" in text
        assert f"$ atom plan --model {model} {flags}\n" in text


def test_the_list_has_the_first_command_of_every_page():
    rows = (FOLDER / "index.md").read_text()
    for name in GENERATOR.PLANS:
        [serve, *_] = re.findall(r"^atom serve .*$", (FOLDER / f"{name}.md").read_text(), re.MULTILINE)
        assert f"]({name}.md) |" in rows
        assert f"| `{serve}` |" in rows


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(GENERATOR.PLANS))
def test_the_memory_of_a_page_is_what_atom_plan_prints(name: str):
    page = (FOLDER / f"{name}.md").read_text()
    assert GENERATOR.page(name) == page, "run `PYTHONPATH=tests/support python tools/recipe_plans.py`"
