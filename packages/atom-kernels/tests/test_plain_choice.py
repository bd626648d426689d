"""Which configurations plain weights have that nobody tuned."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from atom_kernels.linear import LinearProblem
from atom_kernels.linear.triton.choice.configs import skinny_configs
from atom_kernels.linear.triton.choice.plain import plain_configs
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig, default_config
from atom_kernels.platform import Platform

HOPPER = Platform.nvidia("sm_90")


def plain(inputs: int, outputs: int, *, gated: bool = False, dtype: torch.dtype = torch.bfloat16) -> LinearProblem:
    return LinearProblem(inputs, outputs, dtype, gated=gated)


# Shapes whose candidates were measured on an H200, and what was the best of 24 to 48, or within 3% of it.
# None: the library was.
MEASURED = {
    (3840, 4096, False, 16): SkinnyConfig(16, 64, 256, 2, 4, 3, 1),
    (1536, 2688, False, 16): SkinnyConfig(16, 64, 256, 3, 4, 3, 1),
    (5696, 3584, False, 16): SkinnyConfig(16, 64, 256, 2, 4, 3, 1),
    (4608, 4928, False, 16): SkinnyConfig(16, 64, 128, 3, 4, 5, 2, True),
    (8192, 20992, False, 16): SkinnyConfig(16, 64, 128, 1, 4, 5, 2, True),
    (2560, 256000, False, 16): SkinnyConfig(16, 64, 128, 1, 4, 5, 2, True),
    (4608, 18432, True, 16): SkinnyConfig(16, 64, 128, 1, 4, 5, 1, True),
    (11264, 2048, False, 32): SkinnyConfig(32, 64, 128, 4, 4, 5, 2, True),
    (4096, 11264, True, 32): SkinnyConfig(32, 64, 128, 1, 4, 5, 1, True),
    (8192, 15488, False, 32): SkinnyConfig(32, 64, 64, 1, 4, 8, 4, True),
    (4608, 4608, False, 32): None,
    (3072, 6016, False, 64): SkinnyConfig(64, 64, 64, 1, 4, 8, 4, True),
    (8192, 10112, False, 64): SkinnyConfig(64, 64, 128, 1, 4, 3, 2, True),
    (2048, 8192, True, 64): SkinnyConfig(64, 64, 128, 1, 4, 4, 1, True),
    (4096, 4608, False, 64): None,
    (5120, 14080, True, 128): SkinnyConfig(128, 128, 64, 1, 8, 4, 1, True),
    (1024, 4096, True, 128): SkinnyConfig(64, 64, 128, 1, 4, 4, 1, True),
    (3072, 10752, True, 128): None,
    (2304, 4928, False, 128): None,
}


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_what_was_measured_as_best_is_chosen(case):
    inputs, outputs, gated, rows = case
    assert plain_configs(plain(inputs, outputs, gated=gated), HOPPER).get(rows) == MEASURED[case]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("gated", [False, True])
def test_tiles_fit_and_programs_fill_the_processors(seed: int, gated: bool):
    drawn = random.Random(seed)
    inputs, outputs = 64 * drawn.randint(16, 300), 64 * drawn.randint(16, 300)
    found = plain_configs(plain(inputs, outputs, gated=gated), HOPPER)
    assert list(found)[:2] == [1, 16]
    for rows, config in list(found.items())[1:]:
        step = 2 * config.block_k * (config.block_m + config.block_n * (2 if gated else 1))
        assert config.num_stages * step <= HOPPER.local_memory
        assert (config.split_k - 1) * config.block_k < inputs
        blocks = -(-rows // config.block_m) * -(-outputs // config.block_n)
        each = blocks * config.split_k / HOPPER.num_processors
        assert 0.68 <= each <= 1 or each >= 1.3 or config.split_k == 1


def test_splits_that_save_no_step_are_not_made():
    # Six steps make two of each part with three, four and five parts, and 24 blocks of outputs.
    assert plain_configs(plain(1536, 1536), HOPPER)[16].split_k == 4


def test_long_inputs_are_not_left_to_three_quarters_of_the_processors():
    assert plain_configs(plain(6144, 6144), HOPPER)[16].split_k == 1
    assert plain_configs(plain(16384, 6144), HOPPER)[16].split_k == 2


def test_programs_norm_rows_for_themselves_only_in_long_steps():
    for outputs in (2048, 4928, 8192, 32000):
        config = plain_configs(plain(4096, outputs), HOPPER)[16]
        assert config.norm_apart == (config.block_k < 256)


def test_inputs_that_no_step_divides_are_left_to_the_library_beyond_one_row():
    assert list(plain_configs(plain(8200, 3072), HOPPER)) == [1]
    assert list(plain_configs(plain(2880, 5120), HOPPER)) == [1, 16]


def test_routers_have_what_serves_anywhere():
    problem = plain(4096, 256)
    assert plain_configs(problem, HOPPER) == {rows: default_config(problem, rows) for rows in (1, 16, 32)}


@pytest.mark.parametrize(
    ("problem", "config"),
    [
        (plain(8192, 2048), SkinnyConfig(1, 16, 512, 2, 4, 1, 2)),
        (plain(2048, 8192), default_config(plain(2048, 8192), 1)),
        (plain(1536, 1536), SkinnyConfig(1, 1, 1024, 1, 2, 1, 2)),
        (plain(3584, 92544), SkinnyConfig(16, 128, 128, 1, 8, 3, 1)),
        (plain(2048, 5632, gated=True), SkinnyConfig(1, 8, 1024, 1, 4, 1, 1)),
        (plain(4096, 14336, gated=True), default_config(plain(4096, 14336, gated=True), 1)),
    ],
    ids=["long inputs", "many outputs", "few outputs", "head", "short and gated", "gated"],
)
def test_one_row_is_split_where_processors_would_wait(problem: LinearProblem, config: SkinnyConfig):
    assert plain_configs(problem, HOPPER)[1] == config


def test_smaller_memories_have_smaller_tiles():
    ampere = replace(HOPPER, arch="sm_80")
    assert plain_configs(plain(4096, 8192, gated=True), ampere)[16].block_k == 64
    assert plain_configs(plain(4096, 8192), ampere)[16].block_k == 256


@pytest.mark.parametrize(
    ("problem", "platform"),
    [
        (plain(4096, 4352, dtype=torch.float32), HOPPER),
        (plain(4096, 4352), replace(HOPPER, num_processors=0)),
        (plain(4096, 4352), Platform.rocm("gfx942")),
    ],
    ids=["float32", "interpreter", "small memory"],
)
def test_elsewhere_a_rule_serves_up_to_32_rows(problem: LinearProblem, platform: Platform):
    assert skinny_configs(problem, platform) == {rows: default_config(problem, rows) for rows in (1, 16, 32)}
