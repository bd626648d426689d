"""Code that the product has nowhere: the environment outside settings.py, pickle, eval, asserts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from source_tree import dotted_names, imported_modules, nodes, product_files, short, tree

UNSAFE_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}
UNSAFE_NAMES = ("torch.load", "numpy.load", "np.load", "recv_pyobj", "send_pyobj", "yaml.load", "yaml.unsafe_load")


def where(file: Path, line: int) -> str:
    return f"{short(file)}:{line}"


def test_only_settings_read_the_environment():
    readers = {"os.environ", "os.getenv", "os.environb", "os.putenv", "os.unsetenv"}
    found = [
        where(file, line)
        for file in product_files()
        if file.name != "settings.py"
        for name, line in dotted_names(file)
        if name in readers
    ]
    found += [
        where(file, node.lineno)
        for file in product_files()
        if file.name != "settings.py"
        for node in nodes(tree(file))
        if isinstance(node, ast.ImportFrom)
        and node.module == "os"
        and {alias.name for alias in node.names} & {"environ", "getenv", "putenv"}
    ]
    assert found == []


def test_nothing_that_runs_code_from_data_is_imported():
    found = [
        where(file, line)
        for file in product_files()
        for module, line in imported_modules(file)
        if module.split(".")[0] in UNSAFE_MODULES
    ]
    assert found == []


def test_nothing_that_runs_code_from_data_is_called():
    found = [
        f"{where(file, node.lineno)}: {ast.unparse(node.func)}"
        for file in product_files()
        for node in nodes(tree(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in UNSAFE_CALLS
    ]
    found += [
        f"{where(file, line)}: {name}"
        for file in product_files()
        for name, line in dotted_names(file)
        if name in UNSAFE_NAMES or name.rpartition(".")[2] in ("recv_pyobj", "send_pyobj")
    ]
    assert found == []


@pytest.mark.parametrize("keyword", ["allow_pickle", "trust_remote_code"])
def test_no_call_switches_on_code_from_data(keyword: str):
    found = [
        where(file, node.value.lineno)
        for file in product_files()
        for node in nodes(tree(file))
        if isinstance(node, ast.keyword)
        and node.arg == keyword
        and isinstance(node.value, ast.Constant)
        and node.value.value is True
    ]
    assert found == []


def test_no_shell_runs_a_command():
    found = [
        where(file, node.value.lineno)
        for file in product_files()
        for node in nodes(tree(file))
        if isinstance(node, ast.keyword) and node.arg == "shell"
    ]
    found += [
        where(file, line)
        for file in product_files()
        for name, line in dotted_names(file)
        if name in ("os.system", "os.popen")
    ]
    assert found == []


def test_no_error_is_left_to_assert():
    found = [
        where(file, node.lineno)
        for file in product_files()
        for node in nodes(tree(file))
        if isinstance(node, ast.Assert)
    ]
    assert found == []
