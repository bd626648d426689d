"""Tests of this folder run on a GPU, or with TRITON_INTERPRET=1; elsewhere they are not collected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atom_kernels.settings import triton_interpret
from triton_interpreter import what_to_ignore

collect_ignore_glob = what_to_ignore()


@pytest.fixture(scope="session", autouse=True)
def interpreted_steps_multiply_by_torch() -> Iterator[None]:
    """Two thirds of an interpreted step were linears, which have tests of their own; a GPU runs them here too."""
    with pytest.MonkeyPatch.context() as patch:
        if triton_interpret():
            patch.setattr("atom_kernels.linear.triton.backend.skinny_configs", lambda problem, device_name: {})
        yield
