"""RMSNorm and LayerNorm, emulated."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16


def normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def reference(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    return (x.float() / (x.float().square().mean(-1, keepdim=True) + eps).sqrt() * weight.float()).to(x.dtype)


@pytest.mark.parametrize("name", ["rms_norm", "rmsnorm2d_fwd"])
def test_rms_norm_takes_rows_of_a_wider_matrix(aiter: ModuleType, name: str):
    x, weight = normal(5, 40)[:, 7:31], normal(24)
    torch.testing.assert_close(getattr(aiter, name)(x, weight, 1e-5), reference(x, weight))


def test_the_sensitive_form_rounds_before_the_weight(aiter: ModuleType):
    x, weight = normal(3, 24), normal(24)
    rounded = reference(x, torch.ones_like(weight)).float() * weight.float()
    assert torch.equal(aiter.rms_norm(x, weight, 1e-5, 1), rounded.to(BF16))


def test_columns_apart_are_no_rows(pypi_aiter: ModuleType):
    with pytest.raises(SilentlyWrong, match="input has strides"):
        pypi_aiter.rms_norm(normal(8, 3).t(), normal(8), 1e-6)
    with pytest.raises(Refused, match="fp16 and bf16"):
        pypi_aiter.rmsnorm2d_fwd_with_add(*torch.randn(4, 3, 8), torch.randn(8), 1e-6)


def test_rms_norm_with_add_writes_the_sum_and_its_norm(aiter: ModuleType):
    x, residual, weight = normal(5, 24), normal(5, 24), normal(24)
    out, total = torch.empty_like(x), torch.empty_like(x)
    aiter.rmsnorm2d_fwd_with_add(out, x, residual, total, weight, 1e-5)
    assert torch.equal(total, (x.float() + residual.float()).to(BF16))
    torch.testing.assert_close(out, reference(x.float() + residual.float(), weight).to(BF16), rtol=1e-2, atol=1e-2)


def test_the_seventh_argument_is_another_one_in_each_release(git_aiter: ModuleType, pypi_aiter: ModuleType):
    x, residual, weight = normal(2, 8), normal(2, 8), normal(8)
    results = {}
    for package in (git_aiter, pypi_aiter):
        out = torch.empty_like(x)
        package.rmsnorm2d_fwd_with_add(out, x, residual, torch.empty_like(x), weight, 1e-5, *[True])
        results[package] = out
    torch.testing.assert_close(
        results[git_aiter], reference(x.float() + residual.float(), weight.float() + 1).to(BF16), rtol=1e-2, atol=1e-2
    )
    assert not torch.equal(results[git_aiter], results[pypi_aiter])


def test_the_release_on_pypi_takes_matrices_of_16_bit_only(pypi_aiter: ModuleType):
    with pytest.raises(SilentlyWrong, match="2-D only"):
        pypi_aiter.rms_norm(normal(2, 3, 8), normal(8), 1e-6)
    with pytest.raises(Refused, match="fp16 and bf16"):
        pypi_aiter.rms_norm(normal(3, 8).float(), normal(8).float(), 1e-6)
    with pytest.raises(SilentlyWrong, match="weight is torch.float32"):
        pypi_aiter.rms_norm(normal(3, 8), normal(8).float(), 1e-6)


def test_git_takes_any_rank_and_float32(git_aiter: ModuleType):
    x, weight = torch.randn(2, 3, 8), torch.randn(8)
    torch.testing.assert_close(git_aiter.rms_norm(x, weight, 1e-5), reference(x, weight))
    with pytest.raises(Refused, match="weight is torch.float32"):
        git_aiter.rms_norm(normal(3, 8), normal(8).float(), 1e-6)
    with pytest.raises(Refused, match="not torch.float64"):
        git_aiter.rms_norm(x.double(), weight.double(), 1e-6)


@pytest.mark.parametrize("weight", [normal(7), normal(16)[::2]])
def test_weights_of_another_shape_or_with_gaps_are_found(aiter: ModuleType, weight: torch.Tensor):
    with pytest.raises(SilentlyWrong, match="weight has"):
        aiter.rms_norm(normal(3, 8), weight, 1e-6)


@pytest.mark.parametrize("swapped", [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)])
def test_outputs_of_the_sum_share_no_memory(aiter: ModuleType, swapped: tuple[int, int]):
    tensors = [normal(3, 8) for _ in range(4)]
    tensors[swapped[0]] = tensors[swapped[1]]
    with pytest.raises(SilentlyWrong, match="share memory"):
        aiter.rmsnorm2d_fwd_with_add(*tensors, normal(8), 1e-6)


def test_outputs_of_the_sum_are_contiguous_and_of_one_dtype(aiter: ModuleType):
    x, residual = normal(3, 8), normal(3, 8)
    with pytest.raises(Refused, match="out must be contiguous"):
        aiter.rmsnorm2d_fwd_with_add(normal(3, 16)[:, :8], x, residual, normal(3, 8), normal(8), 1e-6)
    with pytest.raises(Refused, match="residual_in is"):
        aiter.rmsnorm2d_fwd_with_add(normal(3, 8), x, residual.float(), normal(3, 8), normal(8), 1e-6)
    with pytest.raises(SilentlyWrong, match="residual_out has shape"):
        aiter.rmsnorm2d_fwd_with_add(normal(3, 8), x, residual, normal(2, 8), normal(8), 1e-6)


def test_layernorm_is_torchs(aiter: ModuleType):
    x, weight, bias, x_bias = normal(5, 24), normal(24), normal(24), normal(24)
    expected = F.layer_norm(x.float(), (24,), weight.float(), bias.float(), 1e-5).to(BF16)
    assert torch.equal(aiter.layernorm2d_fwd(x, weight, bias), expected)
    moved = F.layer_norm(x.float() + x_bias.float(), (24,), weight.float(), bias.float(), 1e-3).to(BF16)
    assert torch.equal(aiter.layernorm2d_fwd(x, weight, bias, 1e-3, x_bias), moved)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"input": normal(2, 3, 8)}, SilentlyWrong),
        ({"input": torch.randn(3, 8)}, Refused),
        ({"weight": torch.randn(8)}, SilentlyWrong),
        ({"bias": normal(7)}, SilentlyWrong),
        ({"weight": normal(16)[::2]}, SilentlyWrong),
    ],
)
def test_layernorm_takes_16_bit_matrices_and_weights_alike(aiter: ModuleType, change: dict, error: type):
    with pytest.raises(error):
        aiter.layernorm2d_fwd(**({"input": normal(3, 8), "weight": normal(8), "bias": normal(8)} | change))


def test_the_two_norms_of_mla_take_columns_of_one_matrix(git_aiter: ModuleType):
    joined, q_weight, k_weight = normal(5, 40), normal(24), normal(16)
    q, k = joined[:, :24], joined[:, 24:]
    q_out, k_out = torch.empty(5, 24, dtype=BF16), torch.empty(5, 16, dtype=BF16)
    git_aiter.fused_qk_rmsnorm(
        q=q, q_weight=q_weight, q_epsilon=1e-5, q_out_unquantized=q_out, k=k, k_weight=k_weight, k_out=k_out
    )
    torch.testing.assert_close(q_out, reference(q, q_weight))
    torch.testing.assert_close(k_out, reference(k, k_weight))


def test_the_two_norms_of_mla_say_what_is_missing(git_aiter: ModuleType):
    q, weight, out = normal(5, 24), normal(24), normal(5, 24)
    with pytest.raises(ValueError, match="q_out_unquantized"):
        git_aiter.fused_qk_rmsnorm(q=q, q_weight=weight)
    with pytest.raises(Refused, match="k needs"):
        git_aiter.fused_qk_rmsnorm(q=q, q_weight=weight, q_out_unquantized=out, k=normal(5, 8))
    with pytest.raises(SilentlyWrong, match="share memory"):
        git_aiter.fused_qk_rmsnorm(q=q, q_weight=weight, q_out_unquantized=q)
    with pytest.raises(Refused, match="dtype"):
        git_aiter.fused_qk_rmsnorm(q=q, q_weight=weight.float(), q_out_unquantized=out)


def test_the_first_norm_of_mla_adds_a_residual(git_aiter: ModuleType):
    q, residual, weight = normal(5, 24), normal(5, 24), normal(24)
    out, total = torch.empty_like(q), torch.empty_like(q)
    pair = {"q": q, "q_weight": weight, "q_epsilon": 1e-5, "q_out_unquantized": out, "q_residual": residual}
    git_aiter.fused_qk_rmsnorm(**pair, q_res_out=total)
    assert torch.equal(total, (q.float() + residual.float()).to(BF16))
    torch.testing.assert_close(out, reference(q.float() + residual.float(), weight).to(BF16), rtol=1e-2, atol=1e-2)
    with pytest.raises(Refused, match="needs q_res_out"):
        git_aiter.fused_qk_rmsnorm(**pair)
    with pytest.raises(SilentlyWrong, match="q_res_out has shape"):
        git_aiter.fused_qk_rmsnorm(**pair, q_res_out=normal(5, 8))
    with pytest.raises(SilentlyWrong, match="q_residual has shape"):
        git_aiter.fused_qk_rmsnorm(**pair | {"q_residual": normal(5, 8)}, q_res_out=total)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"k": normal(4, 24), "k_out": normal(4, 24)}, Refused, "other rows"),
        ({"k_out": normal(5, 8)}, SilentlyWrong, "k_out has shape"),
        ({"k_out": normal(24, 5).t()}, SilentlyWrong, "k_out has strides"),
        ({"k": normal(24, 5).t()}, SilentlyWrong, "k has strides"),
        ({"k_weight": normal(8)}, SilentlyWrong, "k_weight has shape"),
        ({"k_weight": normal(48)[::2]}, SilentlyWrong, "k_weight has strides"),
        ({"q": normal(5, 1, 24)}, Refused, "3 dimensions"),
        ({"q": torch.randn(5, 24)}, Refused, "q is torch.float32"),
    ],
)
def test_what_the_norms_of_mla_misread(git_aiter: ModuleType, changes: dict, error: type, words: str):
    given = {name: normal(5, 24) for name in ("q", "q_out_unquantized", "k", "k_out")}
    weights = {"q_weight": normal(24), "k_weight": normal(24)}
    with pytest.raises(error, match=words):
        git_aiter.fused_qk_rmsnorm(**given | weights | changes)


def test_the_key_is_not_written_over_the_query(git_aiter: ModuleType):
    q, weights = normal(5, 24), {"q_weight": normal(24), "k_weight": normal(24)}
    with pytest.raises(SilentlyWrong, match="k_out and q share memory"):
        git_aiter.fused_qk_rmsnorm(q=q, k=normal(5, 24), q_out_unquantized=normal(5, 24), k_out=q, **weights)
