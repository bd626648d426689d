"""Matrix products and the order of weights, emulated."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from emulated_aiter import emulated_aiter
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16


def module(name: str) -> ModuleType:
    return importlib.import_module(f"aiter.{name}")


def normal(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(*shape).to(dtype)


def test_shuffled_tiles_hold_sixteen_rows_of_sixteen_bytes_column_after_column(aiter: ModuleType):
    plain = torch.arange(32 * 64, dtype=torch.int16).view(32, 64)
    shuffled = module("ops.shuffle").shuffle_weight(plain)
    assert shuffled.is_shuffled
    assert shuffled.shape == plain.shape
    pieces = shuffled.view(-1, 8)
    assert torch.equal(pieces[:16], plain[:16, :8])
    assert torch.equal(pieces[16:32], plain[:16, 8:16])
    assert torch.equal(pieces[64:80], plain[:16, 32:40])
    assert torch.equal(pieces[128:144], plain[16:, :8])


def test_weights_of_experts_are_shuffled_each(aiter: ModuleType):
    experts, shuffle = normal(3, 32, 64), module("ops.shuffle").shuffle_weight
    together = shuffle(experts)
    assert all(torch.equal(together[i], shuffle(experts[i])) for i in range(3))


@pytest.mark.parametrize("shape", [(24, 64), (32, 48)])
def test_sizes_that_tiles_do_not_cover_are_refused(aiter: ModuleType, shape: tuple[int, int]):
    with pytest.raises(AssertionError, match="multiple"):
        module("ops.shuffle").shuffle_weight(normal(*shape))


def test_a_transposed_weight_is_shuffled_as_what_it_holds(aiter: ModuleType):
    shuffle, weight = module("ops.shuffle").shuffle_weight, normal(2, 64, 32)
    assert torch.equal(shuffle(weight.mT), shuffle(weight.mT.contiguous()))
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        shuffle(normal(2, 3, 64, 32).transpose(0, 1))


def test_shuffling_twice_is_found(aiter: ModuleType):
    shuffle = module("ops.shuffle").shuffle_weight
    with pytest.raises(SilentlyWrong, match="shuffled already"):
        shuffle(shuffle(normal(32, 64)).clone())


def test_git_pads_columns_first(git_aiter: ModuleType):
    shuffle, weight = module("ops.shuffle").shuffle_weight, normal(16, 40)
    padded = shuffle(weight, pad_k_to=64)
    assert (padded.shape, padded.aiter_original_k, padded.aiter_padded_k) == ((16, 64), 40, 64)
    assert torch.equal(padded, shuffle(torch.nn.functional.pad(weight, (0, 24))))


@pytest.mark.parametrize("rows", [(5,), (2, 3)])
def test_the_tuned_product_is_linear(aiter: ModuleType, rows: tuple[int, ...]):
    a, b, bias = normal(*rows, 24), normal(7, 24), normal(7)
    expected = torch.nn.functional.linear(a.float(), b.float(), bias.float())
    tgemm = module("tuned_gemm").tgemm
    torch.testing.assert_close(tgemm.mm(a, b, bias).float(), expected, rtol=1e-2, atol=1e-2)
    assert tgemm.mm(a, b, bias).dtype == BF16
    assert torch.equal(tgemm.mm(a, b, bias, otype=torch.float32), tgemm.mm(a, b, bias).float())


def test_products_of_fp8_take_scales(aiter: ModuleType):
    fp8 = aiter.dtypes.fp8
    a, b = normal(4, 16).to(fp8), normal(8, 16).to(fp8)
    scale_a, scale_b = torch.tensor([0.5]), torch.tensor([3.0])
    out = module("tuned_gemm").gemm_a16w16(a, b, None, BF16, scale_a, scale_b)
    torch.testing.assert_close(out, (a.float() @ b.float().t() * 1.5).to(BF16))


def test_scales_are_one_float32(aiter: ModuleType):
    a, b = normal(4, 16).to(aiter.dtypes.fp8), normal(8, 16).to(aiter.dtypes.fp8)
    with pytest.raises(SilentlyWrong, match="scale_a is"):
        module("tuned_gemm").tgemm.mm(a, b, None, BF16, torch.ones(1).double())
    with pytest.raises(SilentlyWrong, match="scale_b is per tensor"):
        module("tuned_gemm").tgemm.mm(a, b, None, BF16, torch.ones(1), torch.ones(8))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"B": normal(7, 16)}, Refused, "columns"),
        ({"B": normal(7, 24, dtype=torch.float16)}, Refused, "B torch.float16"),
        ({"bias": normal(6)}, Refused, "bias"),
        ({"bias": normal(7, dtype=torch.float16)}, Refused, "bias is"),
        ({"A": normal(24)}, Refused, "1-D"),
        ({"scale_a": torch.ones(1)}, SilentlyWrong, "scales"),
        ({"scale_c": torch.ones(1)}, Refused, "scale_c"),
    ],
)
def test_products_that_make_no_sense_are_refused(aiter: ModuleType, change: dict, error: type, words: str):
    arguments = {"A": normal(5, 24), "B": normal(7, 24), "bias": None} | change
    with pytest.raises(error, match=words):
        module("tuned_gemm").gemm_a16w16(**arguments)


def test_git_reads_a_shuffled_weight_by_its_attribute(git_aiter: ModuleType):
    a, b = normal(40, 64), normal(64, 64)
    gemm, shuffle = module("tuned_gemm").gemm_a16w16, module("ops.shuffle").shuffle_weight
    assert torch.equal(gemm(a, shuffle(b)), gemm(a, b))
    torch.testing.assert_close(gemm(a, shuffle(b), otype=torch.float32), a.float() @ b.float().t())
    with pytest.raises(SilentlyWrong, match="B is shuffled, the kernel reads it as it is"):
        gemm(a, shuffle(b).clone())
    with pytest.raises(Refused, match="negative"):
        shuffle(b, pad_k_to=-1)
    apart = shuffle(b).t().contiguous().t()
    apart.is_shuffled = True
    with pytest.raises(SilentlyWrong, match="must be contiguous"):
        gemm(a, apart)
    b.is_shuffled = True
    with pytest.raises(SilentlyWrong, match="B is not shuffled"):
        gemm(a, b)


def test_a_weight_that_changed_after_it_was_looked_at_is_looked_at_again(git_aiter: ModuleType):
    a, b = normal(40, 64), normal(64, 64)
    gemm, shuffle = module("tuned_gemm").gemm_a16w16, module("ops.shuffle").shuffle_weight
    gemm(a, b)
    b.copy_(shuffle(b.clone()))
    with pytest.raises(SilentlyWrong, match="is shuffled"):
        gemm(a, b)


def test_zeros_are_fine_in_both_orders(git_aiter: ModuleType):
    gemm, shuffle = module("tuned_gemm").gemm_a16w16, module("ops.shuffle").shuffle_weight
    zeros = torch.zeros(64, 64, dtype=BF16)
    assert gemm(normal(40, 64), shuffle(zeros)).sum() == 0
    assert gemm(normal(40, 64), zeros).sum() == 0


def test_the_release_on_pypi_takes_no_shuffled_weight(pypi_aiter: ModuleType):
    shuffled = module("ops.shuffle").shuffle_weight(normal(64, 64))
    with pytest.raises(SilentlyWrong, match="shuffled"):
        module("tuned_gemm").tgemm.mm(normal(4, 64), shuffled)


@pytest.mark.parametrize(("shape", "dtype"), [((32, 64), BF16), ((64, 96), BF16), ((64, 64), torch.float16)])
def test_gfx950_has_shuffled_kernels_for_some_shapes_only(shape: tuple[int, int], dtype: torch.dtype):
    with emulated_aiter("git", "gfx950"):
        shuffled = module("ops.shuffle").shuffle_weight(normal(*shape, dtype=dtype))
        with pytest.raises(AssertionError, match="no solution"):
            module("tuned_gemm").tgemm.mm(normal(4, shape[1], dtype=dtype), shuffled)


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_few_rows_of_a_wider_matrix_are_misread_in_git(git_aiter: ModuleType, rows: int):
    gemm, wide, b = module("tuned_gemm").gemm_a16w16, normal(rows, 48), normal(8, 24)
    if rows == 1:
        wide = normal(24, 2).t()[:1]
        with pytest.raises(SilentlyWrong, match="A has strides"):
            gemm(wide, b)
        return
    with pytest.raises(SilentlyWrong, match="A has strides"):
        gemm(wide[:, :24], b)
    with pytest.raises(SilentlyWrong, match="B has strides"):
        gemm(wide[:, :24].contiguous(), normal(24, 8).t())


def test_more_rows_may_have_any_strides(git_aiter: ModuleType):
    gemm, wide, b = module("tuned_gemm").gemm_a16w16, normal(17, 48), normal(24, 8)
    assert torch.equal(gemm(wide[:, :24], b.t()), gemm(wide[:, :24].contiguous(), b.t().contiguous()))


def test_the_batched_product_multiplies_each_pair(aiter: ModuleType):
    x, w = normal(3, 5, 16), normal(3, 7, 16)
    expected = torch.einsum("bmk,bnk->bmn", x.float(), w.float()).to(BF16)
    torch.testing.assert_close(aiter.batched_gemm_bf16_CK(x, w), expected)
    triton = module("ops.triton.batched_gemm_bf16").batched_gemm_bf16
    torch.testing.assert_close(triton(x, w), expected)
    out, bias = torch.empty_like(expected), normal(3, 1, 7)
    assert triton(x, w, bias, YQ=out) is out
    torch.testing.assert_close(out, (expected + bias), rtol=2e-2, atol=2e-2)


def test_the_batched_product_of_triton_takes_views(aiter: ModuleType):
    triton = module("ops.triton.batched_gemm_bf16").batched_gemm_bf16
    x, w = normal(5, 3, 16).transpose(0, 1), normal(3, 16, 7).transpose(1, 2)
    assert torch.equal(triton(x, w), triton(x.contiguous(), w.contiguous()))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"XQ": normal(5, 3, 16).transpose(0, 1)}, SilentlyWrong, "XQ has strides"),
        ({"WQ": normal(3, 16, 7).transpose(1, 2)}, SilentlyWrong, "WQ has strides"),
        ({"WQ": normal(2, 7, 16)}, SilentlyWrong, "WQ has shape"),
        ({"XQ": normal(5, 16)}, SilentlyWrong, "XQ has shape"),
        ({"XQ": normal(3, 5, 16, dtype=torch.float16)}, Refused, "both be bf16"),
        ({"bias": normal(3, 1, 7)}, SilentlyWrong, "bias is ignored"),
        ({"dtype": torch.float16}, SilentlyWrong, "stores bf16"),
        ({"dtype": torch.float32}, AssertionError, "not supported"),
    ],
)
def test_the_batched_product_of_ck_reads_bare_pointers(aiter: ModuleType, change: dict, error: type, words: str):
    arguments = {"XQ": normal(3, 5, 16), "WQ": normal(3, 7, 16)} | change
    with pytest.raises(error, match=words):
        aiter.batched_gemm_bf16_CK(**arguments)


def test_batched_products_take_no_shuffled_weight(aiter: ModuleType):
    shuffled = module("ops.shuffle").shuffle_weight(normal(3, 16, 32))
    for product in (aiter.batched_gemm_bf16_CK, module("ops.triton.batched_gemm_bf16").batched_gemm_bf16):
        with pytest.raises(SilentlyWrong, match="WQ is shuffled"):
            product(normal(3, 5, 32), shuffled)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"YQ": normal(3, 5, 8)}, SilentlyWrong, "YQ has shape"),
        ({"YQ": normal(3, 5, 7).half()}, SilentlyWrong, "YQ is"),
        ({"bias": normal(3, 7)}, SilentlyWrong, "bias has shape"),
        ({"bias": normal(3, 1, 14)[..., ::2]}, SilentlyWrong, "bias has strides"),
        ({"WQ": normal(2, 7, 16)}, AssertionError, "Batch"),
        ({"WQ": normal(3, 7, 8)}, AssertionError, "K dim"),
        ({"splitK": 2}, AssertionError, "splitK"),
        ({"dtype": torch.float32}, AssertionError, "not supported"),
    ],
)
def test_what_the_batched_product_of_triton_misreads(aiter: ModuleType, change: dict, error: type, words: str):
    arguments = {"XQ": normal(3, 5, 16), "WQ": normal(3, 7, 16)} | change
    with pytest.raises(error, match=words):
        module("ops.triton.batched_gemm_bf16").batched_gemm_bf16(**arguments)
