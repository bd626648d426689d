"""Packed weights with an output in each lane: numbers are not rounded, and a row has its bits whatever its batch."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.native_packed_lanes import PACKED_LANES_BACKEND
from atom_kernels.native import compiler, library, load_native, native_unavailable
from atom_kernels.select import plan_with

_FORMATS = (
    *(Integers(8), Integers(8, 16), Integers(8, 32, Offset.MINIMUM, torch.float16), Integers(4), Integers(4, 16)),
    *(Integers(4, 32, offset, dtype) for offset in Offset for dtype in (torch.float16, torch.float32)),
    *(Mxfp4(), Nvfp4(), Float8(), Float8(1, 32), Float8(128, 128)),
)
# Longer than a panel, with outputs that fill neither a pair of blocks nor the last one.
_INPUTS, _OUTPUTS = 2176, 85


@pytest.fixture(scope="module", autouse=True)
def _multiplies_bfloat16():
    if (reason := native_unavailable("linear_packed_lanes")) is not None:
        pytest.skip(reason)
    if not load_native("linear_packed_lanes", {"has_linear_bf16": "->l"}).has_linear_bf16():
        pytest.skip("needs a CPU with avx512_bf16")


def _bound(weight_format, weights, bias, out_dtype=None):
    problem = LinearProblem(_INPUTS, _OUTPUTS, torch.bfloat16, True, out_dtype, weight_format)
    [found] = [one for one in LINEAR.backends if one.implementation == PACKED_LANES_BACKEND.implementation]
    return plan_with(LINEAR, problem, found).prepare(weights | {"bias": bias})


def _quantized(weight_format):
    generator = torch.Generator().manual_seed(0)
    weights = weight_format.quantize(torch.randn(_OUTPUTS, _INPUTS, generator=generator))
    if weight_format.codes.name == "INT8" and weight_format.offset is Offset.NONE:
        weights["weight"][0, :2] = torch.tensor([-128, 127])
    return weights, torch.randn(_OUTPUTS, generator=generator).bfloat16()


def _rows(num_rows):
    return torch.randn(num_rows, _INPUTS, generator=torch.Generator().manual_seed(1)).bfloat16()


@pytest.mark.parametrize("num_rows", [1, 3, 7, 16, 33])
@pytest.mark.parametrize("weight_format", _FORMATS, ids=lambda one: f"{one.name} {one.parts['scale'].dtype}")
def test_weights_are_not_rounded_to_bfloat16(weight_format, num_rows):
    weights, bias = _quantized(weight_format)
    x = _rows(num_rows)
    exact = x.double() @ weight_format.dequantize(weights, _INPUTS).double().T + bias.double()
    found = _bound(weight_format, weights, bias, torch.float32)(x)
    # Sums round in float32: weights that were rounded to 8 places would be off by 0.05 here.
    assert (found.double() - exact).abs().max() < 1e-3


@pytest.mark.parametrize("weight_format", [Integers(8), Integers(4, 32, Offset.MINIMUM)], ids=lambda one: one.name)
def test_a_row_has_the_same_bits_beside_any_number_of_others(weight_format):
    linear, x = _bound(weight_format, *_quantized(weight_format)), _rows(300)
    alone = torch.cat([linear(row) for row in x[:40].split(1)])
    for num_rows in (2, 4, 5, 8, 9, 16, 17, 40, 300):
        assert torch.equal(linear(x[:num_rows])[:40], alone[:num_rows])


@pytest.mark.parametrize("weight_format", [Integers(8), Float8()], ids=lambda one: one.name)
def test_cpus_that_cannot_look_up_bytes_give_the_same_bits(monkeypatch, weight_format):
    quantized, x = _quantized(weight_format), _rows(20)
    looked_up = _bound(weight_format, *quantized)(x)
    monkeypatch.setattr(compiler, "_COMPILE_FLAGS", (*compiler._COMPILE_FLAGS, "-mno-avx512vbmi"))
    monkeypatch.setattr(library, "_open_once", library._open_once.__wrapped__)
    assert torch.equal(_bound(weight_format, *quantized)(x), looked_up)
