"""What every suite is told about the server that it tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """The server, without a path."""
    return os.environ["ATOM_URL"]


@pytest.fixture(scope="session")
def model() -> str:
    """The name that the server gives its model."""
    return os.environ["ATOM_MODEL"]


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    """A folder with the same weights and tokenizer, for tools that load them."""
    return Path(os.environ["ATOM_CHECKPOINT"])
