"""Every operator of the kernels has a contract, a reference, and tests of parity that name it."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys

import pytest

from atom_kernels.registry import OP_MODULES, all_ops
from source_tree import ROOT, package_folder


def test_every_folder_with_a_contract_is_in_the_registry():
    source = package_folder("atom_kernels") / "src"
    folders = {file.parent for name in ("contract.py", "ops.py") for file in source.rglob(name)}
    names = {".".join(folder.relative_to(source).parts) for folder in folders}
    registered = {name.removesuffix(".ops") for name in OP_MODULES}
    assert sorted(names - registered) == []


@pytest.mark.parametrize("module", OP_MODULES)
def test_every_module_of_the_registry_has_operators(module: str):
    assert importlib.import_module(module).OPS


@pytest.mark.parametrize("name", sorted(all_ops()))
def test_an_operator_has_a_contract_with_its_words_and_a_reference(name: str):
    op = all_ops()[name]
    assert callable(op.reference)
    assert len(inspect.getdoc(op.contract) or "") > 40


def test_every_operator_is_in_a_test_of_parity():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "packages/atom-kernels",
    ]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert listed.returncode == 0, listed.stdout + listed.stderr
    tests = [line for line in listed.stdout.splitlines() if "parity" in line]
    assert [name for name in all_ops() if not any(name in line for line in tests)] == []
