"""Norms and the activation that round their rows, emulated."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from tests.aiter_emulator.semantics import machine
from tests.aiter_emulator.semantics.dynamic_quant import lies_by_column
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16


def normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def rows(count: int, size: int, groups: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(count, size, dtype=machine.fp8()), torch.empty(count, groups)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x.float(), (x.shape[1],), weight.float(), 1e-5)


def test_a_row_has_the_scale_of_its_largest_number(aiter: ModuleType):
    x, weight = normal(3, 64), normal(64)
    codes, scale = rows(3, 64)
    aiter.rmsnorm2d_fwd_with_dynamicquant(codes, x, scale, weight, 1e-5)
    torch.testing.assert_close(scale, norm(x, weight).abs().amax(1, keepdim=True) / torch.finfo(codes.dtype).max)
    torch.testing.assert_close(codes.float() * scale, norm(x, weight), rtol=0.07, atol=1e-3)


def test_the_sum_is_written_and_its_exact_value_normed(aiter: ModuleType):
    x, residual, weight = normal(3, 64), normal(3, 64) * 1.01, normal(64)
    total = torch.empty_like(x)
    codes, scale = rows(3, 64)
    aiter.rmsnorm2d_fwd_with_add_dynamicquant(codes, x, residual, total, scale, weight, 1e-5)
    assert torch.equal(total, (x.float() + residual.float()).to(BF16))
    torch.testing.assert_close(codes.float() * scale, norm(x.float() + residual, weight), rtol=0.07, atol=1e-3)


def test_groups_lie_row_after_row_or_group_after_group(git_aiter: ModuleType):
    x, weight = normal(3, 256) * torch.arange(1, 4)[:, None].to(BF16), normal(256)
    wanted = norm(x, weight).unflatten(1, (2, 128)).abs().amax(-1) / torch.finfo(machine.fp8()).max
    for by_column in (False, True):
        codes, scale = rows(3, 256, 2)
        git_aiter.rmsnorm2d_fwd_with_dynamicquant(codes, x, scale, weight, 1e-5, 0, 128, by_column)
        torch.testing.assert_close(scale.view(2, 3).t() if by_column else scale, wanted)
        assert lies_by_column(scale) == by_column


def test_an_activation_is_rounded_by_groups(git_aiter: ModuleType):
    x = normal(3, 512)
    codes, scale = rows(3, 256, 2)
    git_aiter.silu_and_mul_quant(codes, x, scale, 128, 0.0, False)
    gate, up = x.float().chunk(2, dim=1)
    numbers = (codes.float().unflatten(1, (2, 128)) * scale[..., None]).flatten(1)
    torch.testing.assert_close(numbers, F.silu(gate) * up, rtol=0.07, atol=1e-3)
    git_aiter.silu_and_mul_quant(codes, x, scale, 128, 0.5, True)
    assert lies_by_column(scale)
    assert scale.max() * torch.finfo(codes.dtype).max <= F.silu(torch.tensor(0.5)) * 0.5 * 1.01


def test_the_release_on_pypi_has_neither_groups_nor_the_activation(pypi_aiter: ModuleType):
    assert not hasattr(pypi_aiter, "silu_and_mul_quant")
    with pytest.raises(TypeError):
        pypi_aiter.rmsnorm2d_fwd_with_dynamicquant(*rows(1, 64), normal(1, 64), normal(64), 1e-5, 0, 128, True)


def test_wrong_memory_and_sizes_are_found(git_aiter: ModuleType):
    weight = normal(64)
    codes, scale = rows(2, 64)
    with pytest.raises(Refused, match="not support output type"):
        git_aiter.rmsnorm2d_fwd_with_dynamicquant(normal(2, 64), normal(2, 64), scale, weight, 1e-5)
    with pytest.raises(SilentlyWrong, match="out has"):
        git_aiter.rmsnorm2d_fwd_with_dynamicquant(codes[:1], normal(2, 64), scale, weight, 1e-5)
    with pytest.raises(SilentlyWrong, match="scale has"):
        git_aiter.rmsnorm2d_fwd_with_dynamicquant(codes, normal(2, 64), scale[:1], weight, 1e-5)
    with pytest.raises(SilentlyWrong, match="multiple of 16 bytes"):
        git_aiter.rmsnorm2d_fwd_with_dynamicquant(codes, normal(2, 72).view(-1)[3:131].view(2, 64), scale, weight, 1e-5)
    with pytest.raises(SilentlyWrong, match="whole vectors"):
        git_aiter.rmsnorm2d_fwd_with_dynamicquant(*rows(1, 60)[:1], normal(1, 60), torch.empty(1, 1), normal(60), 1e-5)
    with pytest.raises(Refused, match="not support n: 8320"):
        git_aiter.rmsnorm2d_fwd_with_dynamicquant(
            rows(1, 8320)[0], normal(1, 8320), torch.empty(1, 65), normal(8320), 1e-5, 0, 128, True
        )


def test_threads_that_share_no_group_are_found(git_aiter: ModuleType):
    codes, scale = rows(1, 4224, 33)
    with pytest.raises(SilentlyWrong, match="threads of 24 elements share no groups of 128"):
        git_aiter.silu_and_mul_quant(codes, normal(1, 8448), scale, 128, 0.0, False)
    with pytest.raises(SilentlyWrong, match="wider than a wave"):
        git_aiter.silu_and_mul_quant(*rows(1, 1024)[:1], normal(1, 2048), torch.empty(1, 1), 1024, 0.0, False)
    with pytest.raises(Refused, match="power of 2"):
        git_aiter.silu_and_mul_quant(*rows(1, 192)[:1], normal(1, 384), torch.empty(1, 2), 96, 0.0, False)
    with pytest.raises(Refused, match="d > 8192"):
        git_aiter.silu_and_mul_quant(*rows(1, 8320)[:1], normal(1, 16640), torch.empty(1, 65), 128, 0.0, False)
