"""The tests of a change are found by imports, the nearest first, and stop when their time is over."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.changed_tests import changed_files, nearest_tests

pytest_plugins = ["pytester"]

FILES = {
    "packages/p/src/p/__init__.py": "from p.low import work",
    "packages/p/src/p/low.py": "def work(): ...",
    "packages/p/src/p/high.py": "from p.low import work",
    "packages/p/src/p/chosen.py": "BACKENDS = ['p.lazy:Backend', 'kernel', 'chat.js']",
    "packages/p/src/p/lazy.py": "class Backend: ...",
    "packages/p/src/p/native/kernel.c": "int one;",
    "packages/p/src/p/page/chat.js": "",
    "packages/p/tests/test_low.py": "from p.low import work",
    "packages/p/tests/test_high.py": "def test_late():\n    from p.high import work",
    "packages/p/tests/test_chosen.py": "import p.chosen",
    "packages/p/tests/test_other.py": "import os",
    "tests/docs/test_pages.py": "",
    "docs/page.md": "text",
}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def nearest_names(clone: Path, *names: str) -> list[str]:
    return [file.name for _, file in nearest_tests({clone / name for name in names}, clone)]


def test_tests_that_import_a_module_come_before_those_that_import_its_importers(clone: Path):
    assert nearest_names(clone, "packages/p/src/p/low.py") == ["test_low.py", "test_high.py"]


def test_a_changed_test_is_the_nearest_and_others_are_left_out(clone: Path):
    assert nearest_names(clone, "packages/p/tests/test_other.py") == ["test_other.py"]


@pytest.mark.parametrize("name", ["lazy.py", "native/kernel.c", "page/chat.js"])
def test_what_is_named_in_a_text_counts_as_imported(clone: Path, name: str):
    assert nearest_names(clone, f"packages/p/src/p/{name}") == ["test_chosen.py"]


def test_a_changed_page_is_read_by_the_tests_of_the_docs(clone: Path):
    assert nearest_names(clone, "docs/page.md") == ["test_pages.py"]


def test_a_change_is_all_since_the_history_left_its_base(clone: Path):
    def git(*words: str) -> None:
        author = ("-c", "user.name=a", "-c", "user.email=a@b.example")
        subprocess.run(["git", *author, *words], cwd=clone, check=True, capture_output=True)

    def write(name: str) -> Path:
        (clone / name).write_text("changed")
        return clone / name

    git("init", "-b", "main")
    git("add", "-A")
    git("commit", "-m", "first")
    git("checkout", "-b", "topic")
    committed = write("packages/p/src/p/low.py")
    git("commit", "-a", "-m", "second")
    expected = {committed, write("packages/p/src/p/high.py"), write("packages/p/src/p/new.py")}
    assert changed_files("main", clone) == expected


def test_tests_that_are_not_begun_in_time_are_skipped(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile("def test_one(): pass\ndef test_two(): pass")
    pytester.runpytest_inprocess("-p", "stop_after", "--stop-after=1000").assert_outcomes(passed=2)
    pytester.runpytest_inprocess("-p", "stop_after", "--stop-after=-1").assert_outcomes(skipped=2)
