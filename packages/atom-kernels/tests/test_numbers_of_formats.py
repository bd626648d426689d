"""Weight formats number by number: a few weights, and the codes and scales that hold them."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset, Plain, num_bytes, weight_specs
from atom_kernels.formats.codes import Codes
from atom_kernels.formats.cutting import cut, format_of_cuts
from atom_kernels.formats.nibbles import pack_nibbles, unpack_nibbles
from atom_kernels.formats.tiles import largest_of_tiles, smallest_and_largest, tiles
from atom_kernels.formats.weight_format import Part, spread

GROUPS = {offset: Integers(4, 32, offset) for offset in Offset}


def row(*values: float, length: int = 32) -> torch.Tensor:
    """One row that begins with these and goes on with zeros."""
    return torch.tensor([[*values, *[0.0] * (length - len(values))]])


def codes(packed: torch.Tensor, count: int) -> list[int]:
    return unpack_nibbles(packed)[0, :count].tolist()


# What a format is.


@pytest.mark.parametrize(
    ("weight_format", "name", "shapes", "size"),
    [
        (Plain(torch.bfloat16), "bfloat16", {"weight": (5, 96)}, 960),
        (Float8(), "fp8 per row", {"weight": (5, 96), "scale": (5, 1)}, 480 + 20),
        (Float8(2, 64), "fp8 2x64", {"weight": (5, 96), "scale": (3, 2)}, 480 + 24),
        (Integers(8), "int8 per row", {"weight": (5, 96), "scale": (5, 1)}, 480 + 20),
        (Integers(8, 32), "int8 per 32", {"weight": (5, 96), "scale": (5, 3)}, 480 + 60),
        (
            Integers(8, 32, Offset.MINIMUM, torch.float16),
            "int8 per 32 with minimum",
            {"weight": (5, 96), "scale": (5, 3), "minimum": (5, 3)},
            480 + 30 + 30,
        ),
        (Integers(4), "int4 per row", {"weight": (5, 48), "scale": (5, 1)}, 240 + 20),
        (
            Integers(4, 32, Offset.ZERO_POINT),
            "int4 per 32 with zero point",
            {"weight": (5, 48), "scale": (5, 3), "zero_point": (5, 3)},
            240 + 60 + 15,
        ),
        (Mxfp4(), "mxfp4", {"weight": (5, 48), "scale": (5, 3)}, 240 + 15),
        (Nvfp4(), "nvfp4", {"weight": (5, 48), "scale": (5, 6), "tensor_scale": (5, 1)}, 240 + 30 + 20),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_format_has_its_name_its_tensors_and_its_bytes(weight_format, name, shapes, size):
    assert weight_format.name == name
    assert {part: spec.shape for part, spec in weight_specs(weight_format, 5, 96).items()} == shapes
    assert num_bytes(weight_format, 5, 96) == size
    stacked = weight_specs(weight_format, 5, 96, leading=(7,))
    assert {part: spec.shape for part, spec in stacked.items()} == {part: (7, *shape) for part, shape in shapes.items()}
    assert not weight_format.parts["weight"].is_scale
    assert all(part.is_scale for key, part in weight_format.parts.items() if key != "weight")


def test_formats_are_those_that_no_argument_changed():
    assert Float8() == Float8(1, None)
    assert Integers(8) == Integers(8, None, Offset.NONE, torch.float32)
    assert Nvfp4() == Nvfp4(divides=False)
    assert Part(torch.int8) == Part(torch.int8, rows=1, columns=1, is_scale=True)
    for bits in (3, 5, 16):
        with pytest.raises(ValueError, match=f"integer weights have 4 or 8 bits here, not {bits}"):
            Integers(bits)
    with pytest.raises(ValueError, match="integer weights of 8 bits have no zero point here"):
        Integers(8, offset=Offset.ZERO_POINT)


# Tiles.


def test_incomplete_tiles_are_filled_with_zeros():
    weight = torch.arange(1.0, 16.0).reshape(3, 5)
    part = Part(torch.float32, rows=2, columns=3)
    assert tiles(weight, part).shape == (2, 2, 2, 3)
    assert tiles(weight, part)[1, :, 1].tolist() == [[14.0, 15.0, 0.0], [0.0, 0.0, 0.0]]
    assert largest_of_tiles(-weight, part).tolist() == [[8.0, 10.0], [13.0, 15.0]]
    smallest, largest = smallest_and_largest(weight, part)
    assert smallest.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    assert largest.tolist() == [[8.0, 10.0], [13.0, 15.0]]
    rows = Part(torch.float32, rows=1, columns=None)
    assert largest_of_tiles(torch.stack([weight, -2 * weight]), rows).tolist() == [
        [[5.0], [10.0], [15.0]],
        [[10.0], [20.0], [30.0]],
    ]


def test_a_scale_is_spread_over_its_tile():
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert spread(scale, Part(torch.float32, 2, 3), 3, 5).tolist() == [
        [1.0, 1.0, 1.0, 2.0, 2.0],
        [1.0, 1.0, 1.0, 2.0, 2.0],
        [3.0, 3.0, 3.0, 4.0, 4.0],
    ]
    assert spread(scale, Part(torch.float32, 1, 1), 2, 2) is scale
    assert spread(scale[:, :1], Part(torch.float32, 1, None), 2, 9).tolist() == [[1.0], [3.0]]
    assert spread(scale, Part(torch.float32, 1, 2), 2, 3).tolist() == [[1.0, 1.0, 2.0], [3.0, 3.0, 4.0]]
    assert spread(scale, Part(torch.float32, 2, 1), 3, 2).tolist() == [[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]]


# Rounding.


def test_fp8_divides_by_the_largest_number_of_the_row_over_448():
    weight = torch.tensor([[2.0, -1.0, 0.5], [0.0, 0.0, 0.0]])
    held = Float8().quantize(weight)
    assert held["scale"].tolist() == [[pytest.approx(2 / 448)], [1.0]]
    assert held["weight"].float().tolist() == [[448.0, -224.0, 112.0], [0.0, 0.0, 0.0]]
    assert torch.allclose(Float8().dequantize(held, 3), weight)


def test_eight_bits_go_from_minus_127_to_127():
    held = Integers(8).quantize(torch.tensor([[-2.54, 1.27, 0.02, 0.031]]))
    assert held["scale"].item() == pytest.approx(0.02)
    assert held["weight"].tolist() == [[-127, 64, 1, 2]]
    assert Integers(8).dequantize(held, 4)[0].tolist() == pytest.approx([-2.54, 1.28, 0.02, 0.04])


def test_four_bits_lie_around_the_code_8_by_steps_of_a_largest_number_over_seven_and_a_half():
    held = GROUPS[Offset.NONE].quantize(row(7.5, -7.5, 1.0, -1.0, 7.4))
    assert held["scale"].item() == 1.0
    assert codes(held["weight"], 6) == [15, 0, 9, 7, 15, 8]
    assert GROUPS[Offset.NONE].dequantize(held, 32)[0, :6].tolist() == [7.0, -8.0, 1.0, -1.0, 7.0, 0.0]


def test_a_zero_point_is_the_code_of_zero():
    held = GROUPS[Offset.ZERO_POINT].quantize(row(10.0, -5.0, 1.0))
    assert (held["scale"].item(), held["zero_point"].item()) == (1.0, 5)
    assert codes(held["weight"], 4) == [15, 0, 6, 5]
    assert GROUPS[Offset.ZERO_POINT].dequantize(held, 32)[0, :4].tolist() == [10.0, -5.0, 1.0, 0.0]
    positive = GROUPS[Offset.ZERO_POINT].quantize(torch.full((1, 32), 30.0))
    assert (positive["scale"].item(), positive["zero_point"].item()) == (2.0, 0)
    negative = GROUPS[Offset.ZERO_POINT].quantize(torch.full((1, 32), -30.0))
    assert (negative["scale"].item(), negative["zero_point"].item()) == (2.0, 15)
    assert codes(negative["weight"], 1) == [0]


@pytest.mark.parametrize(("bits", "most"), [(4, 15), (8, 127)])
def test_a_minimum_is_the_number_of_code_zero(bits, most):
    weight_format = Integers(bits, 32, Offset.MINIMUM)
    weight = torch.full((1, 32), 2.0)
    weight[0, 1], weight[0, 2] = 2.0 + most, 5.0
    held = weight_format.quantize(weight)
    assert (held["scale"].item(), held["minimum"].item()) == (1.0, 2.0)
    found = held["weight"][0, :3].tolist() if bits == 8 else codes(held["weight"], 3)
    assert found == [0, most, 3]
    assert torch.equal(weight_format.dequantize(held, 32), weight)


@pytest.mark.parametrize("weight_format", [Integers(8), Integers(4, 32), GROUPS[Offset.ZERO_POINT]])
def test_a_scale_is_one_where_all_numbers_are_zero(weight_format):
    assert weight_format.quantize(torch.zeros(1, 32))["scale"].item() == 1.0


def test_mxfp4_scales_are_powers_of_two():
    held = Mxfp4().quantize(row(6.0, -3.0, 0.5, 1.0))
    assert held["scale"].item() == 127
    assert Mxfp4().dequantize(held, 32)[0, :5].tolist() == [6.0, -3.0, 0.5, 1.0, 0.0]
    quarter = Mxfp4().quantize(row(1.5, -0.75))
    assert quarter["scale"].item() == 125
    assert codes(quarter["weight"], 3) == codes(Mxfp4().quantize(row(6.0, -3.0))["weight"], 3)
    assert Mxfp4().quantize(torch.zeros(1, 32))["scale"].item() == 0


@pytest.mark.parametrize("divides", [False, True])
def test_nvfp4_scales_are_448ths_of_the_largest_number_of_a_matrix(divides):
    weight = row(2688.0, length=32)
    weight[0, 16] = 1344.0
    held = Nvfp4(divides).quantize(weight)
    assert held["tensor_scale"].tolist() == [[1.0]]
    assert held["scale"].float().tolist() == [[448.0, 224.0]]
    assert torch.equal(Nvfp4(divides).dequantize(held, 32), weight)
    small = Nvfp4(divides).quantize(weight / 4)
    assert small["tensor_scale"].tolist() == [[4.0 if divides else 0.25]]
    assert torch.equal(Nvfp4(divides).dequantize(small, 32), weight / 4)
    assert Nvfp4(divides).quantize(torch.zeros(2, 32))["tensor_scale"].shape == (2, 1)


def test_two_codes_lie_in_a_byte_the_even_one_low():
    assert pack_nibbles(torch.tensor([[1, 2, 15, 0]], dtype=torch.uint8)).tolist() == [[0x21, 0x0F]]
    assert unpack_nibbles(torch.tensor([[0x21, 0x0F]], dtype=torch.uint8)).tolist() == [[1, 2, 15, 0]]


# Cuts.


def test_a_cut_through_a_tile_makes_it_several():
    tiled = Float8(128, 128)
    assert format_of_cuts(tiled, [(0, 256)], (128, 256)) is tiled
    assert format_of_cuts(tiled, [(64, 128)], (0, 128)) == Float8(64, 128)
    assert format_of_cuts(tiled, [(0, 128)], (32, 128)) == Float8(128, 32)
    # The second part begins at row 96 of what is put together.
    assert format_of_cuts(tiled, [(0, 96), (128, 256)], (0, 128)) == Float8(32, 128)
    assert format_of_cuts(Float8(), [(3, 5)], (1, 2)) == Float8()
    assert format_of_cuts(Plain(torch.float32), [(3, 5)], (1, 2)) == Plain(torch.float32)
    assert format_of_cuts(Integers(4, 32), [(0, 1)], (16, 32)) == Integers(4, 16)
    with pytest.raises(ValueError, match="int4 per 32 holds 2 inputs in a byte: it cannot be cut at input 3"):
        format_of_cuts(Integers(4, 32), [(0, 1)], (3, 32))
    for fixed, block in ((Mxfp4(), 32), (Nvfp4(), 16)):
        told = f"{fixed.name} has a scale for each {block} inputs: it cannot be cut between them"
        with pytest.raises(ValueError, match=told):
            format_of_cuts(fixed, [(0, 1)], (8, 32))
        assert format_of_cuts(fixed, [(3, 4)], (block, 2 * block)) is fixed


def test_a_cut_takes_the_scales_of_its_rows_and_columns():
    scale = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    source, half = Part(torch.float32, 4, 4), Part(torch.float32, 2, 2)
    assert cut(scale, source, source, (4, 8), (0, 4)).tolist() == [[3.0]]
    assert cut(scale, source, source, (0, 5), (4, 8)).tolist() == [[2.0], [4.0]]
    assert cut(scale, source, half, (2, 6), (2, 8)).tolist() == [[1.0, 2.0, 2.0], [3.0, 4.0, 4.0]]
    assert cut(scale, source, half, (2, 5), (6, 8)).tolist() == [[2.0], [4.0]]
    rows = Part(torch.float32, 1, None)
    assert cut(torch.tensor([[1.0], [2.0], [3.0]]), rows, rows, (1, 3), (2, 5)).tolist() == [[2.0], [3.0]]


def test_numbers_of_codes_are_in_a_tensor_of_their_own():
    stored = torch.ones(2, 32)
    numbers = Codes.PLAIN.numbers(stored)
    numbers += 1
    assert stored.eq(1).all()
    eight, four = (
        torch.tensor([[-128, 127]], dtype=torch.int8),
        pack_nibbles(torch.tensor([[0, 15, 8, 1]]).to(torch.uint8)),
    )
    assert Codes.INT8.numbers(eight).tolist() == [[-128.0, 127.0]]
    assert Codes.INT4.numbers(four).tolist() == [[0.0, 15.0, 8.0, 1.0]]
    assert Codes.E2M1.numbers(four).tolist() == [[0.0, -6.0, 0.0, 0.5]]
    assert Codes.E4M3.numbers(torch.tensor([[-2.5]]).to(torch.float8_e4m3fn)).tolist() == [[-2.5]]
