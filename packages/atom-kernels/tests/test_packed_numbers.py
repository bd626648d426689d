"""The configurations of untuned packed weights, and the times by which they are chosen, number by number.

They follow from constants that were fitted to launches on a GPU: whoever fits them anew writes these anew.
"""

from __future__ import annotations

from dataclasses import astuple, replace

import pytest
import torch

from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset, Plain
from atom_kernels.linear import LinearProblem
from atom_kernels.linear.triton.choice.configs import many_rows_configs, near_by, packed_config, skinny_configs
from atom_kernels.linear.triton.choice.launch_model import seconds
from atom_kernels.linear.triton.packed_weights import PACKED_LAYOUT, packing_of, why_not_packed
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig, block_of_inputs, default_config, tuning_key
from atom_kernels.platform import Platform, use_platform
from atom_kernels.tuned import TunedRow

HOPPER = Platform.nvidia("sm_90")
FORMATS = {
    "fp8": (Float8(), Float8()),
    "blocks": (Float8(128, 128), Float8(1, 128)),
    "int8": (Integers(8), None),
    "int4": (Integers(4, 128), None),
    "zeros": (Integers(4, 32, Offset.ZERO_POINT, torch.float16), None),
    "mxfp4": (Mxfp4(), None),
    "nvfp4": (Nvfp4(), None),
}
# Format, gated, inputs, outputs -> configurations of 1, 16, 32, 64 and 128 rows, as far as there are any, and of 256
# and 512; then microseconds of those between. A configuration is block_m x block_n x block_k x split_k x num_warps x
# num_stages x prefetch; n: normed apart, r: rounds, w: makes weights.
CHOSEN = {
    ("fp8", False, 18944, 3584): (
        "1x8x1024x1x4x3x3 16x64x128x3x4x6x3nr 32x64x128x3x4x6x3nr 64x64x128x3x4x5x3nr 64x64x128x2x4x5x3nr",
        "128x128x128x2x8x4x1nw 128x128x128x1x8x4x1nw",
        [33.598, 34.057, 34.974, 45.953],
    ),
    ("blocks", False, 18944, 3584): (
        "1x4x512x1x2x1x3 16x64x128x3x4x6x3nr 32x64x128x3x4x5x3nr 32x64x128x3x4x5x3nr",
        "128x128x128x2x8x4x1nw 128x128x128x1x8x4x1nw",
        [33.599, 34.058, 34.975],
    ),
    ("int8", False, 18944, 3584): (
        "1x8x1024x1x4x3x3 16x64x128x4x4x8x3n 32x64x128x4x4x5x3n 64x64x128x4x4x4x3nw 128x64x128x4x4x3x3nw",
        "128x128x128x2x8x4x1nw 128x128x128x1x8x4x1nw",
        [34.361, 36.154, 42.551, 55.343],
    ),
    ("int4", False, 18944, 3584): (
        "16x64x512x4x4x3x1n 16x64x512x4x4x3x1n 32x64x128x7x4x6x3n 64x64x128x4x4x4x3nw 128x64x128x4x4x3x3nw",
        "128x128x128x2x8x4x1nw 128x128x128x1x8x4x1nw",
        [22.479, 25.322, 33.877, 46.338],
    ),
    ("zeros", False, 18944, 3584): (
        "1x4x2048x1x2x1x3 16x64x128x4x4x6x3nw 32x64x128x4x4x6x3nw 64x64x128x4x4x4x3nw 128x64x128x4x4x3x3nw",
        "128x128x128x2x8x4x1nw 128x128x128x1x8x4x1nw",
        [46.163, 49.362, 55.758, 68.551],
    ),
    ("mxfp4", False, 18944, 3584): (
        "1x4x2048x1x2x1x3 16x64x128x7x4x6x3nw 32x64x128x7x4x6x3nw 64x64x128x4x4x4x3nw 128x64x128x4x4x3x3nw",
        "128x128x128x2x8x4x1nw 128x128x128x1x8x4x1nw",
        [24.815, 28.192, 35.517, 47.978],
    ),
    ("nvfp4", False, 18944, 3584): (
        "1x4x2048x1x2x1x3 16x64x128x7x4x6x3nw 32x64x128x7x4x6x3nw 64x64x128x4x4x4x3nw 128x64x128x4x4x3x3nw",
        "128x128x128x2x8x4x1nw 128x128x128x1x8x4x1nw",
        [24.815, 28.192, 35.517, 47.978],
    ),
    ("fp8", True, 3584, 4608): (
        "1x8x512x1x2x3x3 16x64x128x2x4x6x3nr 32x64x128x1x4x6x3nr 64x64x128x1x4x5x3nr",
        "128x128x128x1x8x3x1nw 128x128x128x2x8x3x1nw",
        [18.458, 19.57, 19.57],
    ),
    ("blocks", True, 3584, 4608): (
        "1x2x512x1x2x1x3 16x64x128x2x4x6x3nr 32x64x128x1x4x5x3nr 32x64x128x1x4x5x3nr",
        "128x128x128x1x8x3x1nw 128x128x128x2x8x3x1nw",
        [18.445, 19.393, 19.393],
    ),
    ("int8", True, 3584, 4608): (
        "1x8x512x1x2x3x3 16x64x128x3x4x8x3n 32x64x128x3x4x5x3n 64x64x128x3x4x4x3nw 128x64x128x1x4x3x3nw",
        "128x128x128x1x8x3x1nw 128x128x128x2x8x3x1nw",
        [27.574, 22.152, 35.307, 46.302],
    ),
    ("int4", True, 3584, 4608): (
        "1x4x2048x1x2x1x3 16x64x512x7x4x3x1n 32x64x128x3x4x6x3n 64x64x128x3x4x4x3nw 128x64x128x1x4x3x3nw",
        "128x128x128x1x8x4x1nw 128x128x128x1x8x4x1nw",
        [15.453, 16.406, 21.561, 39.979],
    ),
    ("zeros", True, 3584, 4608): (
        "1x4x2048x1x2x1x3 16x64x128x3x4x6x3nw 32x64x128x3x4x6x3nw 64x64x128x3x4x4x3nw 128x64x128x3x4x3x3nw",
        "128x128x128x3x8x4x1nw 128x128x128x2x8x4x1nw",
        [26.713, 29.291, 34.446, 52.757],
    ),
    ("mxfp4", True, 3584, 4608): (
        "1x4x2048x1x2x1x3 16x64x128x3x4x6x3nw 32x64x128x3x4x6x3nw 64x64x128x3x4x4x3nw 128x64x128x1x4x3x3nw",
        "128x128x128x1x8x4x1nw 128x128x128x1x8x4x1nw",
        [15.058, 17.636, 22.791, 39.979],
    ),
    ("nvfp4", True, 3584, 4608): (
        "1x4x2048x1x2x1x3 16x64x128x3x4x6x3nw 32x64x128x3x4x6x3nw 64x64x128x3x4x4x3nw 128x64x128x1x4x3x3nw",
        "128x128x128x1x8x4x1nw 128x128x128x1x8x4x1nw",
        [15.058, 17.636, 22.791, 39.979],
    ),
    ("fp8", False, 9216, 2560): (
        "1x8x1024x1x4x3x3 16x64x128x4x4x6x3nr 32x64x128x4x4x6x3nr 64x64x128x4x4x5x3nr 64x64x128x3x4x5x3nr",
        "128x128x128x3x8x4x1nw 128x128x128x3x8x4x1nw",
        [15.292, 15.729, 16.603, 19.754],
    ),
    ("blocks", False, 9216, 2560): (
        "1x4x512x1x2x1x3 16x64x128x4x4x6x3nr 32x64x128x4x4x5x3nr 32x64x128x4x4x5x3nr",
        "128x128x128x3x8x4x1nw 128x128x128x3x8x4x1nw",
        [15.29, 15.727, 16.601],
    ),
    ("int8", False, 9216, 2560): (
        "1x8x1024x1x4x3x3 16x64x128x5x4x8x3n 32x64x128x6x4x5x3n 64x64x128x6x4x4x3nw 128x64x128x6x4x3x3nw",
        "128x128x128x3x8x4x1nw 128x128x128x3x8x4x1nw",
        [17.532, 17.386, 20.085, 26.062],
    ),
    ("int4", False, 9216, 2560): (
        "1x4x1024x1x1x1x3 16x64x512x6x4x3x1n 32x64x128x6x4x6x3n 64x64x128x6x4x4x3nw 128x64x128x6x4x3x3nw",
        "128x128x128x3x8x4x1nw 128x128x128x3x8x4x1nw",
        [9.82, 13.194, 15.343, 21.213],
    ),
    ("zeros", False, 9216, 2560): (
        "1x4x1024x1x1x1x3 16x64x128x6x4x6x3nw 32x64x128x6x4x6x3nw 64x64x128x6x4x4x3nw 128x64x128x6x4x3x3nw",
        "128x128x128x3x8x4x1nw 128x128x128x3x8x4x1nw",
        [19.885, 21.38, 24.368, 30.345],
    ),
    ("mxfp4", False, 9216, 2560): (
        "1x4x1024x1x1x1x3 16x64x128x6x4x6x3nw 32x64x128x6x4x6x3nw 64x64x128x6x4x4x3nw 128x64x128x6x4x3x3nw",
        "128x128x128x3x8x4x1nw 128x128x128x3x8x4x1nw",
        [14.579, 15.654, 17.803, 23.673],
    ),
    ("nvfp4", False, 9216, 2560): (
        "1x4x1024x1x1x1x3 16x64x128x6x4x6x3nw 32x64x128x6x4x6x3nw 64x64x128x6x4x4x3nw 128x64x128x6x4x3x3nw",
        "128x128x128x3x8x4x1nw 128x128x128x3x8x4x1nw",
        [14.579, 15.654, 17.803, 23.673],
    ),
}


def problem_of(name, gated=False, inputs=3584, outputs=4608, dtype=torch.bfloat16):
    weights, rounded = FORMATS[name]
    return LinearProblem(inputs, outputs, dtype, gated=gated, weight_format=weights, input_format=rounded)


def written(config):
    sizes, flags = astuple(config)[:7], astuple(config)[7:]
    return "x".join(map(str, sizes)) + "".join(letter for letter, is_on in zip("nrw", flags, strict=True) if is_on)


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_a_weight_that_nobody_tuned_gets_its_configurations_by_estimated_times(case):
    few, many, times = CHOSEN[case]
    problem = problem_of(*case)
    with use_platform(HOPPER):
        found, further = skinny_configs(problem, HOPPER), many_rows_configs(problem, HOPPER)
    assert " ".join(map(written, found.values())) == few
    assert {rows: written(config) for rows, config in further.items()} == dict(
        zip((256, 512), many.split(), strict=True)
    )
    estimated = [seconds(problem, config, rows, HOPPER) for rows, config in found.items() if rows > 1]
    assert estimated == pytest.approx([time * 1e-6 for time in times], abs=1e-9)


def test_a_launch_that_memory_bounds_takes_as_long_as_its_weights_do():
    """The microseconds of a launch, and codes and scales at seven tenths of the memory's rate."""
    problem = problem_of("fp8", outputs=37888)
    slow = replace(HOPPER, bytes_per_second=1e11)
    tile = SkinnyConfig(64, 64, 128, 1, 4, 5, norm_apart=True, rounds=True)
    assert seconds(problem, tile, 64, slow) == pytest.approx(1.5e-6 + (3584 + 4) * 37888 / 0.7e11)


def test_a_machine_whose_size_nobody_knows_splits_nothing():
    with use_platform(HOPPER):
        config = packed_config(problem_of("int4", inputs=18944), 64, replace(HOPPER, num_processors=0))
    assert config.split_k == 1


# Dtype, rows, gated, inputs, outputs -> what a plain or packed weight of the size gets without any model of a GPU.
DEFAULTS = {
    (None, torch.bfloat16, 1, False, 1024, 512): "1x2x1024x1x4x1x4",
    (None, torch.bfloat16, 1, False, 1024, 513): "1x8x512x1x4x1x1",
    (None, torch.bfloat16, 1, True, 1024, 256): "1x2x1024x1x4x1x4",
    (None, torch.bfloat16, 1, True, 1024, 512): "1x4x512x1x4x1x1",
    (None, torch.bfloat16, 16, False, 4096, 4096): "16x64x64x2x4x3x1",
    (None, torch.bfloat16, 17, False, 4096, 512): "32x64x64x8x4x3x1",
    (None, torch.bfloat16, 16, False, 4096, 7680): "16x64x64x1x4x3x1",
    (None, torch.bfloat16, 16, False, 128, 512): "16x64x64x2x4x3x1",
    (None, torch.float32, 16, False, 4096, 128): "16x16x32x32x4x2x1",
    (None, torch.float32, 17, False, 4096, 4096): "32x16x32x1x4x2x1",
    (None, torch.float32, 16, False, 4096, 2048): "16x16x32x2x4x2x1",
    ("int4", torch.float32, 16, False, 4096, 4096): "16x64x128x4x4x3x1",
    ("int4", torch.float32, 17, False, 4096, 512): "32x64x128x8x4x3x1",
    ("blocks", torch.float32, 16, False, 4096, 15360): "16x64x128x1x4x3x1",
    ("int4", torch.float32, 1, True, 4096, 512): "1x4x1024x1x4x1x1",
    ("int4", torch.float32, 1, False, 4096, 512): "1x8x1024x1x4x1x1",
}


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_without_a_model_of_the_gpu_a_rule_gives_enough_programs(case):
    name, dtype, rows, gated, inputs, outputs = case
    weights = FORMATS[name][0] if name else None
    problem = LinearProblem(inputs, outputs, dtype, gated=gated, weight_format=weights)
    assert written(default_config(problem, rows)) == DEFAULTS[case]


def test_packed_weights_in_float32_have_configurations_of_up_to_32_rows():
    wide = problem_of("int4", dtype=torch.float32)
    with use_platform(HOPPER):
        found = skinny_configs(wide, HOPPER)
    assert list(found) == [1, 16, 32]
    assert found[16] == default_config(wide, 16)
    assert many_rows_configs(wide, HOPPER) == {}


def test_tuned_blocks_of_a_shape_near_by_are_considered_where_they_round_alike():
    problem = problem_of("int4", inputs=18944, outputs=3584)
    config = {"block_m": 16, "block_n": 128, "block_k": 128, "num_warps": 8, "num_stages": 5}
    with use_platform(HOPPER):
        taken = packed_config(problem, 16, HOPPER, (TunedRow(16, config),))
        other_rows = packed_config(problem, 16, HOPPER, (TunedRow(32, config),))
        rounding = packed_config(problem, 16, HOPPER, (TunedRow(16, config | {"rounds": True}),))
    alone = CHOSEN["int4", False, 18944, 3584][0].split()[1]
    assert written(other_rows) == written(rounding) == alone
    assert (taken.block_n, taken.norm_apart) in ((128, True), (64, True))


def test_shapes_are_near_whose_sides_differ_by_up_to_15_in_a_hundred():
    row = (TunedRow(16, {}),)
    tuned = {"4000x4000 bfloat16 int4 per 128": row}
    for key, expected in (("4600x4000", row), ("4601x4000", ()), ("4000x3479", row), ("4000x3478", ())):
        assert near_by(f"{key} bfloat16 int4 per 128", tuned) == expected
    with pytest.raises(ValueError, match="'wide' is no key of a linear: INPUTSxOUTPUTS and its kind"):
        near_by("wide", tuned)


def test_a_key_names_all_that_a_configuration_depends_on():
    assert tuning_key(problem_of("int4")) == "3584x4608 bfloat16 int4 per 128"
    assert tuning_key(problem_of("int4", gated=True)).startswith("3584x4608 gated bfloat16 int4")
    plain = LinearProblem(64, 32, torch.bfloat16, out_dtype=torch.float32)
    assert tuning_key(plain) == "64x32 bfloat16 to float32"


def test_a_step_of_inputs_is_a_tile_of_words_or_at_most_a_group_of_bytes():
    groups = {"int4": 128, "mxfp4": 128, "blocks": 128, "int8": 128}
    for name, size in groups.items():
        assert block_of_inputs(packing_of(FORMATS[name][0], 4096), 128) == size
    assert block_of_inputs(packing_of(Integers(8, 96), 4096), 128) == 32


def test_a_kernel_is_compiled_with_the_sizes_of_its_configuration():
    for block_m, stages in ((1, 3), (16, 1)):
        config = SkinnyConfig(block_m, 64, 128, 2, 8, 3, 5, makes_weights=True)
        assert config.launch() == {
            "BLOCK_M": block_m, "BLOCK_N": 64, "BLOCK_K": 128, "SPLIT_K": 2, "STAGES": stages, "PREFETCH": 5,
            "MAKES_WEIGHTS": True, "num_warps": 8, "num_stages": 3,
        }  # fmt: skip
    assert written(SkinnyConfig(1, 2, 3)) == "1x2x3x1x4x4x1"


# Format -> the numbers of its scales and of what is added, as kernels read them; or why they do not.
PACKED = {
    Float8(): (torch.float32, None),
    Float8(128, 128): (torch.float32, None),
    Integers(8): (torch.float32, None),
    Integers(8, 32): (torch.float32, None),
    Integers(4, 128): (torch.float32, None),
    Integers(4, 256): (torch.float32, None),
    # Two numbers of 16 bits share a word.
    Integers(4, 32, Offset.ZERO_POINT, torch.float16): (torch.int32, None),
    Integers(4, 64, Offset.MINIMUM, torch.float16): (torch.uint32, None),
    Integers(4, 32, Offset.ZERO_POINT): (torch.float32, torch.float32),
    Integers(4, 32, Offset.MINIMUM): (torch.float32, torch.float32),
    Mxfp4(): (torch.int32, None),
    Nvfp4(): (torch.float32, None),
    Plain(torch.bfloat16): "for packed weights",
    Integers(4, 48): "reads groups of 16, 32, 64 or multiples of 128 inputs, not 48",
    Integers(4, 96): "reads groups of 16, 32, 64 or multiples of 128 inputs, not 96",
    Integers(8, 48): "reads tiles of multiples of 32 inputs, not 48",
    Float8(1, 48): "reads tiles of multiples of 32 inputs, not 48",
    Integers(8, 32, Offset.MINIMUM, torch.float16): "reads codes of eight bits without a minimum",
}


@pytest.mark.parametrize("weight_format", PACKED, ids=lambda weight_format: weight_format.name)
@pytest.mark.parametrize("bias", [False, True])
def test_packed_weights_are_of_these_numbers_and_as_large_as_was_said(weight_format, bias):
    problem = LinearProblem(
        in_features=768, out_features=64, dtype=torch.bfloat16, bias=bias, weight_format=weight_format
    )
    expected = PACKED[weight_format]
    if isinstance(expected, str):
        assert why_not_packed(problem) == expected
        return
    assert why_not_packed(problem) is None
    weights = torch.randn(64, 768, generator=torch.Generator().manual_seed(0))
    vector = torch.zeros(64, dtype=torch.bfloat16) if bias else None
    packed = PACKED_LAYOUT.pack(problem, {**weight_format.quantize(weights), "bias": vector})
    assert packed["bias"] is vector
    assert packed["scale"].dtype == expected[0]
    assert (None if packed["minimum"] is None else packed["minimum"].dtype) == expected[1]
    held = [tensor for tensor in packed.values() if tensor is not None]
    assert all(tensor.is_contiguous() for tensor in held)
    assert sum(tensor.nbytes for tensor in held) == PACKED_LAYOUT.num_bytes(problem, 0)
