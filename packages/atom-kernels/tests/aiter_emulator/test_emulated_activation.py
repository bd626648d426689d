"""Gated activations and torch's quantizers, emulated."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16


def normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


GATED = {
    "silu_and_mul": lambda g, u: F.silu(g) * u,
    "gelu_and_mul": lambda g, u: F.gelu(g) * u,
    "gelu_tanh_and_mul": lambda g, u: F.gelu(g, approximate="tanh") * u,
    "swiglu_and_mul": lambda g, u: g.clamp(max=7) * (1.702 * g.clamp(max=7)).sigmoid() * (u.clamp(-7, 7) + 1),
}


@pytest.mark.parametrize("name", GATED)
def test_activations_take_halves(aiter: ModuleType, name: str):
    if not hasattr(aiter, name):
        pytest.skip("this release has none")
    x = normal(2, 3, 20) * 6
    out = torch.empty(2, 3, 10, dtype=BF16)
    getattr(aiter, name)(out, x)
    torch.testing.assert_close(out, GATED[name](*x.float().chunk(2, dim=-1)).to(BF16))


def test_git_clamps_before_silu_and_widens_float32(git_aiter: ModuleType):
    x, out = torch.randn(3, 12) * 6, torch.empty(3, 6, dtype=BF16)
    git_aiter.silu_and_mul(out, x, 2.0)
    gate, up = x.chunk(2, dim=-1)
    torch.testing.assert_close(out, (F.silu(gate.clamp(max=2)) * up.clamp(-2, 2)).to(BF16))
    with pytest.raises(Refused, match="limit"):
        git_aiter.silu_and_mul(out, x, -1.0)


@pytest.mark.parametrize(
    ("out", "x", "error", "words"),
    [
        (normal(3, 6), normal(12, 3).t(), SilentlyWrong, "input has strides"),
        (normal(6, 3).t(), normal(3, 12), SilentlyWrong, "out has strides"),
        (normal(3, 5), normal(3, 12), SilentlyWrong, "out has shape"),
        (normal(3, 6).half(), normal(3, 12), Refused, "out"),
        (normal(3, 6), normal(3, 13), SilentlyWrong, "no halves"),
        (normal(3, 6).double(), normal(3, 12).double(), Refused, "input"),
    ],
)
def test_activations_that_kernels_misread(aiter: ModuleType, out, x, error: type, words: str):
    with pytest.raises(error, match=words):
        aiter.silu_and_mul(out, x)


def test_an_activation_does_not_write_into_its_input(aiter: ModuleType):
    memory = normal(72)
    with pytest.raises(SilentlyWrong, match="share memory"):
        aiter.silu_and_mul(memory[:18].view(3, 6), memory[:36].view(3, 12))


def test_rows_that_end_within_a_vector_reach_the_next(git_aiter: ModuleType, pypi_aiter: ModuleType):
    for width in (130, 202, 516):
        git_aiter.silu_and_mul(normal(2, width), normal(2, 2 * width))
    pypi_aiter.silu_and_mul(normal(2, 130), normal(2, 260))
    pypi_aiter.silu_and_mul(normal(2, 63), normal(2, 126))
    for width in (202, 516):
        with pytest.raises(SilentlyWrong, match="next row"):
            pypi_aiter.silu_and_mul(normal(2, width), normal(2, 2 * width))
    with pytest.raises(SilentlyWrong, match="next row"):
        git_aiter.silu_and_mul(normal(2, 63), normal(2, 126))


def test_the_release_on_pypi_activates_16_bit_only(pypi_aiter: ModuleType):
    with pytest.raises(Refused, match="input"):
        pypi_aiter.silu_and_mul(torch.empty(3, 6), torch.empty(3, 12))


def test_quantizers_say_what_they_do_not_know(aiter: ModuleType):
    quantize = importlib.import_module("aiter.ops.quant").get_torch_quant
    x = torch.randn(4, 256)
    assert quantize(aiter.QuantType.No)(x) == (x, None)
    values, scale = quantize(aiter.QuantType.per_Token)(x, quant_dtype=aiter.dtypes.fp8)
    assert (values.dtype, scale.shape) == (aiter.dtypes.fp8, (4, 1))
    torch.testing.assert_close(values.float() * scale, x, rtol=0.1, atol=0.05)
    assert quantize(aiter.QuantType.per_1x128)(x)[1].shape == (4, 2)
    assert quantize(aiter.QuantType.per_Tensor)(x)[0].dtype == torch.int8
    with pytest.raises(NotImplementedError, match="per_128x128"):
        quantize(aiter.QuantType.per_128x128)(x)
