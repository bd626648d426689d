"""The emulated AITER of both releases, on gfx942 unless a test says otherwise."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from emulated_aiter import RELEASES, emulated_aiter


@pytest.fixture(params=RELEASES)
def aiter(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """``import aiter`` in each release."""
    yield from imported(request.param)


@pytest.fixture
def git_aiter() -> Iterator[ModuleType]:
    """What only git has, or does otherwise."""
    yield from imported("git")


@pytest.fixture
def pypi_aiter() -> Iterator[ModuleType]:
    """What the release on PyPI does otherwise."""
    yield from imported("pypi")


def imported(release: str) -> Iterator[ModuleType]:
    with emulated_aiter(release):
        yield importlib.import_module("aiter")
