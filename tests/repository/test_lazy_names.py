"""Packages that import their names at first use have all that they list."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2].glob("packages/*/src")
PACKAGES = [
    ".".join(file.parent.relative_to(source).parts)
    for source in SOURCES
    for file in sorted(source.rglob("__init__.py"))
    if "= lazy_names(__name__)" in file.read_text()
]


def test_there_are_such_packages():
    assert {"atom_kernels", "atom_models", "atom_core", "atom_core.engine"} <= set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_listed_name_can_be_imported(package: str):
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_a_name_that_is_not_there_is_refused_as_any_module_does(package: str):
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing
