"""Formats of weights: what they hold, how far rounding goes, and that a part of a matrix is the matrix's part."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.formats import (
    Codes,
    Float8,
    Integers,
    Mxfp4,
    Nvfp4,
    Offset,
    Part,
    Plain,
    cut,
    format_of_cuts,
    num_bytes,
    pack_nibbles,
    unpack_nibbles,
    weight_specs,
)
from atom_kernels.formats.float4 import encode_e2m1
from atom_kernels.linear import LINEAR, LinearProblem, linear
from atom_kernels.native import native_unavailable
from atom_kernels.platform import detect_platform
from atom_kernels.select import plan_with, select
from told_formats import Told

FORMATS = [
    Plain(torch.bfloat16),
    Float8(),
    Float8(128, 128),
    Float8(1, 128),
    Integers(8),
    Integers(8, 32, scale_dtype=torch.float16),
    Integers(8, 32, Offset.MINIMUM),
    Integers(4),
    Integers(4, 32, scale_dtype=torch.bfloat16),
    Integers(4, 64, Offset.ZERO_POINT, torch.float16),
    Integers(4, 32, Offset.MINIMUM, torch.float16),
    Mxfp4(),
    Nvfp4(),
    Nvfp4(divides=True),
]
# The largest error of a number, as a share of the largest number that it has a scale with.
ERRORS = {"bfloat16": 2**-8, "fp8": 2**-4, "int8": 0.51 / 127, "int4": 1.1 / 15, "mxfp4": 1 / 4, "nvfp4": 0.18}


def largest_error(weight_format) -> float:
    """With a minimum, codes of eight bits are 0 to 127: half as many."""
    kind = weight_format.name.split()[0]
    return ERRORS[kind] * (2 if kind == "int8" and "minimum" in weight_format.parts else 1)


def matrix(num_rows: int = 192, num_columns: int = 320, *leading: int) -> torch.Tensor:
    return torch.randn(*leading, num_rows, num_columns, generator=torch.Generator().manual_seed(num_rows))


def each(formats):
    return pytest.mark.parametrize("weight_format", formats, ids=lambda one: f"{one.name}, {one}"[:60])


@each(FORMATS)
def test_tensors_have_the_shapes_that_the_format_says(weight_format):
    tensors = weight_format.quantize(matrix(200, 320, 3))
    specs = weight_specs(weight_format, 200, 320, leading=(3,))
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()} == {
        name: (spec.shape, spec.dtype) for name, spec in specs.items()
    }
    held = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
    assert held == 3 * num_bytes(weight_format, 200, 320)


@each(FORMATS)
def test_rounding_goes_no_further_than_half_a_step(weight_format):
    weight = matrix()
    error = (weight_format.dequantize(weight_format.quantize(weight), 320) - weight).abs()
    most = largest_error(weight_format)
    scale = weight_format.parts.get("scale", Part(torch.float32))
    for row in range(0, 192, scale.rows):
        for column in range(0, 320, scale.columns or 320):
            tile = slice(row, row + scale.rows), slice(column, column + (scale.columns or 320))
            assert error[tile].max() <= most * weight[tile].abs().max()


@each([one for one in FORMATS if one not in (Integers(4), Integers(4, 32, scale_dtype=torch.bfloat16))])
def test_numbers_of_the_format_stay_as_they_are(weight_format):
    """A second rounding moves them by much less than the first one. (Codes around 8 do not hold the largest number.)"""
    once = weight_format.dequantize(weight_format.quantize(matrix()), 320)
    twice = weight_format.dequantize(weight_format.quantize(once), 320)
    moved = (twice - once).abs().max() / once.abs().max()
    assert moved <= largest_error(weight_format) / 2


@each(FORMATS)
def test_zeros_are_held_exactly(weight_format):
    assert not weight_format.dequantize(weight_format.quantize(torch.zeros(128, 256)), 256).any()


@each(FORMATS)
@pytest.mark.parametrize("rows", [[(0, 192)], [(64, 128)], [(128, 192), (0, 64)], [(0, 100), (0, 192)]])
@pytest.mark.parametrize("columns", [(0, 320), (64, 320), (128, 256)])
def test_a_part_of_a_matrix_equals_that_part_of_its_numbers(weight_format, rows, columns):
    """As ranks cut it and layers stack it. Tiles that are cut become smaller; no number changes."""
    tensors = weight_format.quantize(matrix())
    held = format_of_cuts(weight_format, rows, columns)
    parts = {
        name: torch.cat([cut(tensors[name], source, held.parts[name], span, columns) for span in rows], dim=-2)
        for name, source in weight_format.parts.items()
    }
    width = columns[1] - columns[0]
    assert {name: part.shape for name, part in parts.items()} == {
        name: spec.shape for name, spec in weight_specs(held, sum(b - a for a, b in rows), width).items()
    }
    whole = weight_format.dequantize(tensors, 320)
    expected = torch.cat([whole[first:last, slice(*columns)] for first, last in rows])
    assert torch.equal(held.dequantize(parts, width), expected)


@pytest.mark.parametrize(
    ("bits", "offset", "most"),
    [(4, Offset.MINIMUM, 1 / 30), (8, Offset.MINIMUM, 1 / 254), (4, Offset.ZERO_POINT, 6 / 30)],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_an_offset_spares_codes_for_numbers_of_one_sign(bits, offset, most, sign):
    """A minimum uses all codes between the smallest and the largest number, a zero point those between zero and it."""
    weight = sign * (5 + torch.rand(4, 64, generator=torch.Generator().manual_seed(0)))
    weight_format = Integers(bits, 32, offset)
    error = (weight_format.dequantize(weight_format.quantize(weight), 64) - weight).abs().max()
    assert most / 2 < error <= 1.01 * most


def test_tiles_that_no_cut_goes_through_stay_whole():
    tiles = Float8(128, 128)
    assert format_of_cuts(tiles, [(0, 576)], (0, 320)) == tiles
    assert format_of_cuts(tiles, [(0, 1536), (0, 576)], (128, 320)) == tiles
    assert format_of_cuts(tiles, [(0, 192), (0, 192)], (0, 320)) == Float8(64, 128)
    assert format_of_cuts(tiles, [(576, 1152)], (64, 128)) == Float8(64, 64)


@each([Mxfp4(), Nvfp4()])
def test_blocks_of_a_fixed_size_are_not_cut(weight_format):
    with pytest.raises(ValueError, match=r"has a scale for each (16|32) inputs: it cannot be cut"):
        format_of_cuts(weight_format, [(0, 64)], (8, 64))


def test_two_codes_of_a_byte_are_not_cut():
    with pytest.raises(ValueError, match="holds 2 inputs in a byte: it cannot be cut at input 33"):
        format_of_cuts(Integers(4), [(0, 64)], (33, 64))


def test_integers_of_other_sizes_are_refused():
    with pytest.raises(ValueError, match="4 or 8 bits here, not 3"):
        Integers(3)
    with pytest.raises(ValueError, match="8 bits have no zero point"):
        Integers(8, 32, Offset.ZERO_POINT)


def test_nibbles_come_back_as_they_were_and_the_even_one_is_low():
    codes = torch.randint(0, 16, (5, 64), dtype=torch.uint8)
    assert torch.equal(unpack_nibbles(pack_nibbles(codes)), codes)
    assert pack_nibbles(torch.tensor([[1, 2]], dtype=torch.uint8)).item() == 0x21


def test_e2m1_holds_its_sixteen_numbers_and_rounds_to_the_nearest_and_to_even():
    numbers = Codes.E2M1.numbers(pack_nibbles(torch.arange(16, dtype=torch.uint8)))
    assert numbers.tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
    assert torch.equal(Codes.E2M1.numbers(encode_e2m1(numbers)), numbers)
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 100.0])
    assert Codes.E2M1.numbers(encode_e2m1(middles)).tolist() == [0, 1, 1, 2, 2, 4, 4, 6]
    assert Codes.E2M1.numbers(encode_e2m1(-middles)).tolist() == [0, -1, -1, -2, -2, -4, -4, -6]


@pytest.mark.parametrize(("largest", "byte"), [(0.0, 0), (1.0, 125), (1.74, 125), (1.76, 126), (6.0, 127), (7.5, 128)])
def test_mxfp4_scales_round_the_largest_numbers_exponent_to_even(largest, byte):
    assert Mxfp4().quantize(torch.full((1, 32), largest))["scale"].item() == byte


def test_mxfp4_equals_transformers_for_every_code_and_scale():
    convert_moe_packed_tensors = pytest.importorskip("transformers.integrations.mxfp4").convert_moe_packed_tensors
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (2, 8, 3, 16), dtype=torch.uint8, generator=generator)
    scale = torch.randint(100, 150, (2, 8, 3), dtype=torch.uint8, generator=generator)
    ours = Mxfp4().dequantize({"weight": blocks.flatten(-2), "scale": scale}, 96)
    assert torch.equal(ours.bfloat16(), convert_moe_packed_tensors(blocks, scale).transpose(1, 2))


@each([Nvfp4(), Nvfp4(divides=True)])
def test_the_largest_number_of_an_nvfp4_matrix_has_the_largest_scale_and_code(weight_format):
    weight = torch.full((1, 16), 0.25)
    weight[0, 3] = 12.0
    tensors = weight_format.quantize(weight)
    assert tensors["scale"].float().max() == 448.0
    assert Codes.E2M1.numbers(tensors["weight"]).max() == 6.0
    largest = 1 / tensors["tensor_scale"] if weight_format.divides else tensors["tensor_scale"]
    torch.testing.assert_close(largest, torch.tensor([[12.0 / (6 * 448)]]))


@each([one for one in FORMATS if not isinstance(one, Plain | Mxfp4)])
def test_kernels_read_a_format_by_what_it_says_of_itself(weight_format):
    problem = LinearProblem(320, 192, torch.float32, weight_format=Told(weight_format))
    tensors = problem.weight_format.quantize(matrix())
    x = matrix(5)
    expected = linear(x, weight_format.dequantize(tensors | {"scale": tensors["scale"].float() * 2}, 320))
    for backend in LINEAR.backends:
        if backend.why_not(problem, detect_platform()) is None:
            product = plan_with(LINEAR, problem, backend).prepare({**tensors, "bias": None})(x)
            torch.testing.assert_close(product, expected, atol=1e-3, rtol=1e-3)
    assert native_unavailable() or select(LINEAR, problem).has_kernel
