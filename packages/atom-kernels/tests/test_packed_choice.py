"""Which configurations serve packed weights of shapes that nobody tuned, and what is launched for how many rows."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch

from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.triton.choice import configs
from atom_kernels.linear.triton.choice.configs import near_by, packed_config, skinny_configs
from atom_kernels.linear.triton.choice.launch_model import seconds
from atom_kernels.linear.triton.packed_product import norms_while_rounding, packed_linear
from atom_kernels.linear.triton.packed_weights import pack
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig, tuning_key
from atom_kernels.platform import Platform, use_platform
from atom_kernels.triton.launch import launches_go_to
from atom_kernels.tuned import TunedRow

HOPPER = Platform.nvidia("sm_90")
ROWS, BLOCKS = (Float8(), Float8()), (Float8(128, 128), Float8(1, 128))
FORMATS = {
    "fp8": ROWS,
    "fp8 blocks": BLOCKS,
    "int8": (Integers(8), None),
    "int4": (Integers(4, 128), None),
    "int4 with zero points": (Integers(4, 32, Offset.ZERO_POINT, torch.float16), None),
    "int4 in groups of 16": (Integers(4, 16), None),
    "mxfp4": (Mxfp4(), None),
    "nvfp4": (Nvfp4(), None),
}


def problem_of(name, inputs=3584, outputs=4608, *, gated=False, dtype=torch.bfloat16):
    weights, rounded = FORMATS[name]
    return LinearProblem(
        inputs, outputs, dtype, gated=gated, weight_format=weights, input_format=rounded, neighbors=True
    )


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_untuned_packed_weights_have_a_configuration_for_each_number_of_rows_up_to_128(name, gated):
    with use_platform(HOPPER):
        found = skinny_configs(problem_of(name, gated=gated), HOPPER)
    # Beyond 64 rows cuBLAS multiplies fp8 in tiles, and that which ends in an activation.
    most = 64 if name == "fp8 blocks" or (gated and name == "fp8") else 128
    assert list(found) == [rows for rows in (1, 16, 32, 64, 128) if rows <= most]
    assert found[1].block_m == 1
    assert all(16 <= config.block_m <= rows for rows, config in found.items() if rows > 1)


def test_one_row_of_many_inputs_in_int4_is_multiplied_as_16_are():
    def block_m(name="int4", platform=HOPPER, **rules):
        problem = problem_of(name, **{"inputs": 14336, "outputs": 4096} | rules)
        with use_platform(platform):
            return packed_config(problem, 1, platform).block_m

    assert block_m() == 16
    assert block_m(inputs=12288) == block_m(gated=True) == block_m(dtype=torch.float32) == 1
    assert block_m("int4 in groups of 16") == block_m("int8") == block_m("mxfp4") == 1
    assert block_m(platform=Platform.rocm("gfx942")) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_rounded_where_the_checkpoint_allows_it_and_the_gpu_multiplies_fp8(name):
    allows = FORMATS[name][1] is not None
    with use_platform(HOPPER):
        assert packed_config(problem_of(name), 16, HOPPER).rounds is allows
        assert not packed_config(problem_of(name), 1, HOPPER).rounds
        without = replace(problem_of(name), input_format=None)
        assert not packed_config(without, 16, HOPPER).rounds
    older = Platform.nvidia("sm_80")
    with use_platform(older):
        assert not packed_config(problem_of(name), 16, older).rounds


def test_the_inputs_are_split_until_the_programs_fill_one_round_of_the_processors():
    with use_platform(HOPPER):
        narrow = packed_config(problem_of("fp8", 18944, 3584), 64, HOPPER)
        wide = packed_config(problem_of("fp8", 3584, 37888), 64, HOPPER)
    # 56 blocks of 64 outputs leave most of 132 processors idle; 592 do not.
    assert narrow.split_k == 3
    assert wide.split_k == 1


def test_a_smaller_gpu_splits_less():
    small = replace(HOPPER, num_processors=20)
    with use_platform(HOPPER):
        assert packed_config(problem_of("int4", 18944, 2560), 64, HOPPER).split_k > 1
    with use_platform(small):
        assert packed_config(problem_of("int4", 18944, 2560), 64, small).split_k == 1


def test_programs_beyond_a_whole_round_of_the_processors_cost_another_round_where_memory_is_fast():
    tile = SkinnyConfig(64, 64, 128, 1, 4, 5, rounds=True)
    fast = replace(HOPPER, bytes_per_second=1e15)

    def time_of(blocks, platform):
        return seconds(replace(problem_of("fp8"), out_features=64 * blocks), tile, 64, platform)

    # A processor holds two such programs at a time.
    assert time_of(2 * 132, fast) == time_of(132 + 1, fast)
    assert time_of(2 * 132 + 1, fast) > 1.5 * time_of(2 * 132, fast)
    assert time_of(8 * 132, replace(HOPPER, bytes_per_second=1e12)) > 2 * time_of(8 * 132, fast)


def test_what_was_tuned_on_another_device_of_the_architecture_serves_too(monkeypatch):
    problem = problem_of("int4")
    config = {"block_m": 16, "block_n": 32, "block_k": 128, "split_k": 7}
    tuned = {tuning_key(problem): (TunedRow(16, config),)}
    monkeypatch.setattr(configs, "tuned_rows", lambda *_: None)
    monkeypatch.setattr(configs, "tuned_on_arch", lambda operator, arch: tuned if arch == "sm_90" else {})
    other = replace(HOPPER, name="NVIDIA H200")
    with use_platform(other):
        assert skinny_configs(problem, other) == {16: SkinnyConfig(**config)}
    blackwell = Platform.nvidia("sm_100")
    with use_platform(blackwell):
        assert len(skinny_configs(problem, blackwell)) == 5


def test_the_nearest_tuned_shape_of_the_same_kind_is_considered_where_it_is_near():
    row = {name: (TunedRow(16, {"name": name}),) for name in "abcd"}
    tuned = {
        "4096x4096 bfloat16 int4 per 128": row["a"],
        "4096x6144 bfloat16 int4 per 128": row["b"],
        "4096x5120 bfloat16 fp8 per row": row["c"],
        "4096x5120 gated bfloat16 int4 per 128": row["d"],
    }
    assert near_by("4096x5600 bfloat16 int4 per 128", tuned) == row["b"]
    assert near_by("4096x4300 bfloat16 int4 per 128", tuned) == row["a"]
    assert near_by("4096x5120 gated bfloat16 int4 per 128", tuned) == row["d"]
    assert near_by("4096x12288 bfloat16 int4 per 128", tuned) == ()
    assert near_by("4096x5120 bfloat16 mxfp4", tuned) == ()


def launched(problem, num_rows, *, normed=False):
    """Names of the kernels of a linear of many rows, and bytes of the largest weight that is made plain."""
    pytest.importorskip("triton")
    weights, inputs = LINEAR.make_inputs(problem, num_rows, torch.Generator().manual_seed(0))
    norm = (torch.ones(problem.in_features), 1e-5, 0.0) if normed else ()
    kernels, plain = [], [0]

    def take(kernel, grid, *arguments, **options):
        kernels.append(kernel.__name__)
        if kernel.__name__ == "make_plain_kernel":
            plain.append(arguments[3].numel() * arguments[3].element_size())

    def product(rows, codes, *scales, out_dtype, **options):
        return torch.zeros(rows.shape[0], codes.shape[1], dtype=out_dtype)

    # Not every CPU multiplies rows of float8 in torch.
    with use_platform(HOPPER), launches_go_to(take), mock.patch.object(torch, "_scaled_mm", product):
        packed_linear(problem.product, pack(problem, weights))(inputs[0], *norm)
    return kernels, max(plain)


@pytest.mark.parametrize("name", [name for name, (_, rounded) in FORMATS.items() if rounded is None])
def test_a_weight_is_decoded_inside_the_product_of_hundreds_of_rows(name):
    for num_rows in (1, 100, 500):
        kernels, plain = launched(problem_of(name, 256, 128), num_rows)
        assert kernels == ["skinny_linear_kernel"]
        assert plain == 0


def test_of_a_weight_no_more_is_made_plain_at_a_time_than_the_cache_holds():
    kernels, plain = launched(problem_of("int4", 8192, 2100), 513)
    assert kernels == ["make_plain_kernel"] * 2
    assert plain <= 32 << 20


@pytest.mark.parametrize("num_rows", [129, 1000])
def test_however_many_rows_are_rounded_the_kernel_that_does_it_norms_them(num_rows):
    problem = problem_of("fp8", 256, 128)
    assert launched(problem, num_rows, normed=True)[0] == ["round_rows_kernel"]
    assert norms_while_rounding(problem.product, HOPPER)
    assert norms_while_rounding(problem_of("fp8 blocks").product, HOPPER)
    assert not norms_while_rounding(problem_of("int4").product, HOPPER)
    assert not norms_while_rounding(problem.product, Platform.nvidia("sm_80"))


def test_many_rows_are_normed_before_a_weight_that_is_made_plain():
    assert launched(problem_of("int4", 256, 128), 600, normed=True)[0] == ["rms_norm_kernel", "make_plain_kernel"]
