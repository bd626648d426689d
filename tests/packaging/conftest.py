"""The wheels of this checkout, built once."""

from __future__ import annotations

from pathlib import Path

import pytest

from source_tree import MAY_IMPORT
from tools.build_wheels import build_wheels


@pytest.fixture(scope="session")
def our_wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each package's wheel, by import name."""
    built = build_wheels(tmp_path_factory.mktemp("wheels"))
    return {name: next(wheel for wheel in built if wheel.name.startswith(name + "-")) for name in MAY_IMPORT}
