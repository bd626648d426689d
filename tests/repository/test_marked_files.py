"""Runs of marked tests import the files that have some, and no others."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading the installed ones anew takes seconds."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "marked_files", "-p", "no:warnings", *arguments)


def names_of(result: pytest.RunResult) -> list[str]:
    """The files that were imported; each says so."""
    return sorted(line.split()[-1] for line in result.outlines if line.startswith("imported"))


@pytest.fixture
def files(pytester: pytest.Pytester) -> pytest.Pytester:
    """Files that say when they are imported, by the marks of their tests."""
    for name, marks in {"plain": (), "slow": ("slow",), "both": ("slow", "timing"), "gpu": ("gpu",)}.items():
        lines = ["import pytest", f"print('imported', '{name}')"]
        lines += [f"pytestmark = [{', '.join(f'pytest.mark.{mark}' for mark in marks)}]", "def test_it(): pass"]
        pytester.makepyfile(**{f"test_{name}": "\n".join(lines)})
    return pytester


@pytest.mark.parametrize(
    ("asked", "imported"),
    [
        ("slow", ["both", "slow"]),
        ("timing and not slow", ["both"]),
        ("gpu or network", ["gpu"]),
        ("not gpu and not slow", ["both", "gpu", "plain", "slow"]),
        ("", ["both", "gpu", "plain", "slow"]),
        ("asyncio", ["both", "gpu", "plain", "slow"]),
    ],
)
def test_files_are_imported_whose_marks_may_be_asked_for(files: pytest.Pytester, asked: str, imported: list[str]):
    assert names_of(run(files, "-s", "-m", asked)) == imported


def test_a_file_that_is_asked_for_by_name_is_imported(files: pytest.Pytester):
    assert names_of(run(files, "-s", "-m", "slow", "test_plain.py")) == ["plain"]


def test_a_mark_that_comes_from_another_file_is_refused(files: pytest.Pytester):
    files.makeconftest(
        "import pytest\n"
        "def pytest_itemcollected(item):\n"
        "    if item.path.name == 'test_plain.py': item.add_marker(pytest.mark.slow)"
    )
    result = run(files, "-m", "not slow")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_plain.py::test_it is marked slow, and its file does not say so: write*"])


def test_what_is_no_expression_is_left_to_pytest(files: pytest.Pytester):
    result = run(files, "-m", "slow and and")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*Wrong expression passed to '-m'*"])
