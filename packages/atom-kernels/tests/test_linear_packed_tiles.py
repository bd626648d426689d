"""Packed weights in AMX tiles give the bits of decoded ones; without AMX, tiles are imitated in C."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.linear.native_packed_tiles import PACKED_TILES_BACKEND
from atom_kernels.linear.native_tiles import TILES_BACKEND
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.platform import Facts, platform_from_facts
from atom_kernels.select import plan_with

# A minimum is added in one rounding, which torch has no operator for.
_MINIMA = (Integers(8, 32, Offset.MINIMUM), Integers(4, 64, Offset.MINIMUM))
_FORMATS = (
    *(Integers(8), Integers(8, 16), Integers(4, 16), Integers(4, 32, Offset.ZERO_POINT)),
    *(Integers(4, 96, Offset.ZERO_POINT), Mxfp4(), Nvfp4(), Float8(), Float8(1, 32), Float8(128, 128)),
)


@pytest.fixture(scope="module", autouse=True)
def _can_decode():
    """Codes are decoded by instructions for bfloat16, whatever multiplies them."""
    if (reason := native_unavailable("linear_quantized")) is not None:
        pytest.skip(reason)
    if not load_native("linear_quantized", {"has_linear_bf16": "->l"}).has_linear_bf16():
        pytest.skip("needs a CPU with avx512_bf16")


def _bound(backend, problem, weights):
    [found] = [one for one in LINEAR.backends if one.implementation == backend.implementation]
    return plan_with(LINEAR, problem, found).prepare(weights)


def _quantized(weight_format, inputs=2112, outputs=37):
    generator = torch.Generator().manual_seed(0)
    weights = weight_format.quantize(torch.randn(outputs, inputs, generator=generator))
    return weights, torch.randn(outputs, generator=generator).bfloat16()


@pytest.mark.parametrize("num_rows", [1, 7, 33])
@pytest.mark.parametrize("weight_format", _FORMATS, ids=lambda one: one.name)
def test_packed_weights_give_the_bits_of_decoded_ones(weight_format, num_rows):
    plain = LinearProblem(2112, 37, torch.bfloat16, bias=True)
    weights, bias = _quantized(weight_format)
    decoded = weight_format.dequantize(weights, 2112).bfloat16()
    exact = _bound(TILES_BACKEND, plain, {"weight": decoded, "bias": bias})
    found = _bound(PACKED_TILES_BACKEND, replace(plain, weight_format=weight_format), weights | {"bias": bias})
    x = torch.randn(num_rows, 2112).bfloat16()
    assert torch.equal(found(x), exact(x))


@pytest.mark.parametrize("weight_format", _MINIMA, ids=lambda one: one.name)
def test_minima_are_added_to_scaled_codes(weight_format):
    plain = LinearProblem(2112, 37, torch.bfloat16, bias=True)
    weights, bias = _quantized(weight_format)
    found = _bound(PACKED_TILES_BACKEND, replace(plain, weight_format=weight_format), weights | {"bias": bias})
    x = torch.randn(5, 2112, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact = x.double() @ weight_format.dequantize(weights, 2112).double().T + bias.double()
    # Weights are rounded to 8 places, and so are results.
    of_weights = 3 * 2**-9 * x.double().norm(dim=1, keepdim=True)
    assert torch.all((found(x).double() - exact).abs() <= exact.abs() * 2**-8 + of_weights)


def test_a_row_has_the_same_bits_beside_any_number_of_others():
    problem = LinearProblem(2112, 37, torch.bfloat16, bias=True, weight_format=Integers(4, 32, Offset.MINIMUM))
    weights, bias = _quantized(problem.weight_format)
    linear, x = _bound(PACKED_TILES_BACKEND, problem, weights | {"bias": bias}), torch.randn(300, 2112).bfloat16()
    alone = torch.cat([linear(row) for row in x[:40].split(1)])
    for num_rows in (2, 17, 40, 300):
        assert torch.equal(linear(x[:num_rows])[:40], alone[:num_rows])


def test_groups_that_cross_tiles_are_refused():
    amx = platform_from_facts(Facts(cpu_features=frozenset({"amx_bf16", "avx512_bf16"}), bf16_slowdown=0.2))
    problem = LinearProblem(2112, 37, torch.bfloat16, weight_format=Integers(8, 48))
    assert "for groups of 16 or multiples of 32 inputs" in PACKED_TILES_BACKEND.supports(problem, amx)
