"""What docs/amd.md says of kernels and models is what is selected."""

from __future__ import annotations

from tools.amd_models import PAGE, render, table


def test_the_table_of_models_is_what_is_selected():
    assert PAGE.read_text() == render(PAGE.read_text())


def test_both_architectures_select_the_same_kernels():
    assert table("gfx950") == table("gfx942")
