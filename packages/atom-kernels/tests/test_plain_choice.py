"""Which configurations plain weights have that nobody tuned."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from atom_kernels.linear import LinearProblem
from atom_kernels.linear.triton.choice.configs import skinny_configs
from atom_kernels.linear.triton.choice.launch_model import library_seconds, num_programs, seconds
from atom_kernels.linear.triton.choice.plain import plain_configs
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig, default_config
from atom_kernels.platform import Platform

HOPPER = Platform.nvidia("sm_90")
H200 = replace(HOPPER, bytes_per_second=4.8e12)


def plain(inputs: int, outputs: int, *, gated: bool = False, dtype: torch.dtype = torch.bfloat16) -> LinearProblem:
    return LinearProblem(inputs, outputs, dtype, gated=gated)


# Shapes whose candidates were measured on an H100 and an H200, and what was best on both, or within 2% of it.
MEASURED = {
    (4096, 6144, True, 16): SkinnyConfig(16, 64, 256, 1, 4, 3, 1, True),
    (18944, 3584, False, 16): SkinnyConfig(16, 64, 256, 2, 4, 3, 1),
    (4096, 3072, False, 16): SkinnyConfig(16, 64, 256, 2, 4, 3, 1),
    (2048, 6144, True, 32): SkinnyConfig(32, 64, 128, 1, 4, 5, 1, True),
    (7168, 8192, False, 32): SkinnyConfig(32, 64, 128, 1, 4, 5, 2, True),
    (2048, 8192, True, 64): SkinnyConfig(64, 64, 128, 1, 4, 4, 1, True),
}


@pytest.mark.parametrize("platform", [HOPPER, H200], ids=["H100", "H200"])
@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_what_was_measured_as_best_is_chosen(case, platform: Platform):
    inputs, outputs, gated, rows = case
    assert plain_configs(plain(inputs, outputs, gated=gated), platform)[rows] == MEASURED[case]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("gated", [False, True])
def test_steps_end_where_the_inputs_do_and_tiles_fit(seed: int, gated: bool):
    drawn = random.Random(seed)
    inputs, outputs = 128 * drawn.randint(4, 150), 64 * drawn.randint(4, 300)
    problem = plain(inputs, outputs, gated=gated)
    found = plain_configs(problem, HOPPER)
    assert list(found)[:3] == [1, 16, 32]
    for rows, config in list(found.items())[1:]:
        tile_bytes = 2 * config.block_k * (config.block_m + config.block_n * (2 if gated else 1))
        assert inputs % config.block_k == 0
        assert config.num_stages * tile_bytes <= HOPPER.local_memory
        assert config.split_k * config.block_k <= inputs
        if rows > 32:
            assert seconds(problem, config, rows, HOPPER) < library_seconds(problem, rows, HOPPER)


def test_one_round_of_programs_is_not_overrun_by_a_few():
    found = plain_configs(plain(3584, 4608), HOPPER)
    for rows in (16, 32):
        assert not 132 < num_programs(plain(3584, 4608), found[rows], rows) < 1.3 * 132


def test_inputs_that_no_step_divides_are_left_to_the_library_beyond_one_row():
    assert list(plain_configs(plain(8200, 3072), HOPPER)) == [1]
    assert list(plain_configs(plain(2880, 5120), HOPPER))[:3] == [1, 16, 32]


def test_long_inputs_with_few_outputs_are_split_at_one_row():
    assert plain_configs(plain(8192, 2048), HOPPER)[1].split_k == 2
    assert plain_configs(plain(2048, 8192), HOPPER)[1].split_k == 1


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
