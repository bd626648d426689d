"""docs/amd/recipe-*.txt is what one rank of each recipe would run on AMD GPUs."""

from __future__ import annotations

import pytest

from tools.amd_recipes import ARCHES, FOLDER, RECIPES, page, path_of


@pytest.mark.parametrize("arch", [pytest.param("gfx942", marks=pytest.mark.slow), "gfx950"])
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipes_file_is_what_its_model_selects(name: str, arch: str):
    assert path_of(name, arch).read_text() == page(name, arch), "run `python tools/amd_recipes.py`"


def test_there_is_a_file_for_each_recipe_and_no_other():
    files = {path_of(name, arch) for name in RECIPES for arch in ARCHES}
    assert set(FOLDER.glob("recipe-*.txt")) == files


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", RECIPES)
def test_every_kernel_of_a_recipe_is_aiters_or_ours_in_triton(name: str, arch: str):
    kernels = [line for line in path_of(name, arch).read_text().splitlines() if line.startswith("    ")]
    strangers = [line for line in kernels if not line.strip().startswith(("aiter", "triton"))]
    assert kernels
    assert not strangers
