"""Files stay short, say what they are, and have names that tell."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from source_tree import MAY_IMPORT, ROOT, nodes, package_folder, product_files, short, test_files, tree

LONGEST = 500
LONGEST_KERNEL = 700
MOST_FILES = 15
# Folders with more files, each with the reason.
LARGE_FOLDERS = {
    "packages/atom-models/src/atom_models/architectures": "a file for each family of models",
    "packages/atom-server/src/atom_server/routes": "a file for each group of routes, and what they share",
    "tools": "a file for each program that contributors run",
    "benchmarks": "a file for each benchmark, and what they share",
    "benchmarks/gpu": "a file for each thing that is measured, on our side and on the other engine's",
}
NAMES_THAT_SAY_NOTHING = {"utils", "util", "common", "helpers", "helper", "misc", "base", "mgr", "cfg"}


def native_sources() -> list[Path]:
    return [file for pattern in ("*.c", "*.h", "*.cpp") for file in (ROOT / "packages").glob(f"*/src/**/{pattern}")]


def num_lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def test_no_file_is_too_long():
    kernels = package_folder("atom_kernels") / "src"
    caps = {file: LONGEST_KERNEL if kernels in file.parents else LONGEST for file in [*product_files(), *test_files()]}
    caps |= dict.fromkeys(native_sources(), LONGEST_KERNEL)
    assert [f"{short(file)}: {num_lines(file)}" for file, cap in caps.items() if num_lines(file) > cap] == []


def test_the_median_file_of_the_product_is_short():
    lengths = sorted(num_lines(file) for file in product_files() if file.name != "__init__.py")
    assert lengths[len(lengths) // 2] <= 150


def files_by_folder() -> dict[str, int]:
    """How many Python files lie in each folder of the product; those that only re-export do not count."""
    return Counter(short(file.parent) for file in product_files() if file.name != "__init__.py")


def test_a_folder_has_few_files_or_a_reason_for_more():
    assert {folder for folder, count in files_by_folder().items() if count > MOST_FILES} == set(LARGE_FOLDERS)


def test_no_file_or_folder_has_a_name_that_says_nothing():
    # The emulator's two trees have the names that AITER gives.
    files = [file for file in [*product_files(), *test_files()] if "aiter_emulator" not in file.parts]
    paths = [file.relative_to(ROOT) for file in files]
    assert [str(path) for path in paths if NAMES_THAT_SAY_NOTHING & {path.stem, *path.parts}] == []


def test_no_class_is_a_base_or_an_impl():
    found = [
        f"{short(file)}: {node.name}"
        for file in product_files()
        for node in nodes(tree(file))
        if isinstance(node, ast.ClassDef) and (node.name.startswith("Base") or node.name.endswith("Impl"))
    ]
    assert found == []


def test_every_file_says_in_its_first_line_what_it_is():
    files = [file for file in [*product_files(), *test_files()] if file.read_text().strip()]
    assert [short(file) for file in files if not ast.get_docstring(tree(file))] == []


def test_an_init_file_only_reexports():
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr, ast.If)
    found = [
        f"{short(file)}:{node.lineno}"
        for file in product_files()
        if file.name == "__init__.py"
        for node in tree(file).body
        if not isinstance(node, allowed) and not (isinstance(node, ast.FunctionDef) and node.name == "__getattr__")
    ]
    assert found == []


def test_no_two_test_files_have_one_name():
    names = [file.name for file in test_files() if file.name.startswith("test_")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_every_package_is_typed_and_carries_the_license():
    license_text = (ROOT / "LICENSE").read_text()
    for name in MAY_IMPORT:
        assert (package_folder(name) / "src" / name / "py.typed").is_file()
        assert (package_folder(name) / "LICENSE").read_text() == license_text
