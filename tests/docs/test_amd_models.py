"""What docs/amd.md says of kernels and models is what is selected."""

from __future__ import annotations

import pytest

from tools.amd_models import PAGE, render, table


@pytest.fixture(scope="module")
def rows() -> str:
    return table()


def test_the_table_of_models_is_what_is_selected(rows: str):
    assert PAGE.read_text() == render(PAGE.read_text(), rows)


def test_both_architectures_select_the_same_kernels(rows: str):
    assert table("gfx950") == rows
