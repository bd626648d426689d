"""Run the tests of a change, the nearest first: `python -m tools.changed_tests [--base REV] [--minutes N] ...`.

A test file is near a changed file if few imports lie between the two. When the minutes are over, the tests that are
left are skipped; `make test` runs them all.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Where modules lie: a folder under which a file's path is its module's name, and the files.
_MODULES = (
    ("packages/*/src", "**/*.py"),
    ("packages/*/tests", "**/*.py"),
    ("tests/support", "*.py"),
    ("", "tests/**/*.py"),
    ("", "tools/**/*.py"),
    ("", "benchmarks/**/*.py"),
    ("", "conftest.py"),
)
# Pages and settings are read by these, whatever they import.
_READERS = {".md": "tests/docs", ".svg": "tests/docs", ".toml": "tests/repository", "": "tests/repository"}


def changed_files(base: str, root: Path = ROOT) -> set[Path]:
    """Files under `root` that differ from where the history left `base`; files that git does not know yet, too."""
    fork = _git(root, "merge-base", base, "HEAD").strip()
    names = [_git(root, "diff", "--name-only", fork), _git(root, "ls-files", "--others", "--exclude-standard")]
    return {root / line for text in names for line in text.splitlines()}


def nearest_tests(changed: Iterable[Path], root: Path = ROOT) -> list[tuple[int, Path]]:
    """(imports between, test file) for each test file that a changed file can reach, the nearest first."""
    importers = _importers(root)
    distances = dict.fromkeys(changed, 0)
    waiting = deque(distances)
    while waiting:
        file = waiting.popleft()
        for importer in importers[file]:
            if importer not in distances:
                distances[importer] = distances[file] + 1
                waiting.append(importer)
    for file in changed:
        for reader in (root / _READERS[file.suffix]).glob("test_*.py") if file.suffix in _READERS else ():
            distances.setdefault(reader, 1)
    tests = ((distance, file) for file, distance in distances.items() if file.name.startswith("test_"))
    return sorted((distance, file) for distance, file in tests if file.suffix == ".py" and file.exists())


def _importers(root: Path) -> dict[Path, set[Path]]:
    """For each file, those that import it, or name it in a text as lazy modules, C sources and parts of a page are."""
    named: dict[str, Path] = {}
    for prefix, pattern in _MODULES:
        for folder in root.glob(prefix) if prefix else (root,):
            named |= {_module_name(file.relative_to(folder)): file for file in folder.glob(pattern)}
    files = set(named.values())
    for source in root.glob("packages/*/src/*/native/*.[ch]"):
        named[source.stem] = named[source.name] = source
    named |= {file.name: file for file in root.glob("packages/*/src/*/page/*.*")}
    importers: dict[Path, set[Path]] = defaultdict(set)
    for file in files:
        for name in _names_in(file):
            target = named.get(name) or named.get(name.rpartition(".")[0])
            if target is not None and target != file:
                importers[target].add(file)
    return importers


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _names_in(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(), filename=str(file))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 200:
            yield node.value.partition(":")[0]


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """pytest's exit status; 0 where nothing has a test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="main", metavar="REV", help="what the change started from (default: main)")
    parser.add_argument("--minutes", type=float, default=2, help="begin no other test after so many (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the test files and run none")
    options, pytest = parser.parse_known_args(arguments)
    found = nearest_tests(changed_files(options.base))
    names = [str(file.relative_to(ROOT)) for _, file in found]
    if not names:
        print("No test reads the change.")
    elif options.list:
        print("\n".join(f"{distance:3} {name}" for (distance, _), name in zip(found, names, strict=True)))
    else:
        workers = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
        command = [sys.executable, "-m", "pytest", *workers, f"--stop-after={60 * options.minutes}", *pytest, *names]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
