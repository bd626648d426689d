"""Quantized products and the quantizers of their rows, emulated."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from emulated_aiter import emulated_aiter
from tests.aiter_emulator.semantics import mx
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16


def module(name: str) -> ModuleType:
    return importlib.import_module(f"aiter.{name}")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(BF16)


def rows_operands(aiter: ModuleType, m=5, n=16, k=192, *, dtype=None, shuffled=False):
    dtype = dtype or aiter.dtypes.fp8
    x, x_scale = aiter.per_token_quant_hip(normal(m, k), quant_dtype=dtype)
    w, w_scale = aiter.pertoken_quant(normal(n, k), quant_dtype=dtype)
    if shuffled:
        w = module("ops.shuffle").shuffle_weight(w)
    return {"XQ": x, "WQ": w, "x_scale": x_scale, "w_scale": w_scale}


def tile_operands(aiter: ModuleType, m=5, n=144, k=256, *, shuffled=False):
    x, x_scale = aiter.per_group_quant_hip(normal(m, k), quant_dtype=aiter.dtypes.fp8, transpose_scale=shuffled)
    w = normal(n, k).to(aiter.dtypes.fp8)
    w = module("ops.shuffle").shuffle_weight(w) if shuffled else w
    return {"XQ": x, "WQ": w, "x_scale": x_scale, "w_scale": torch.rand(-(-n // 128), -(-k // 128)) + 0.5}


def test_the_quantizer_of_rows_is_that_of_torch_but_for_rows_of_zeros(aiter: ModuleType):
    x = normal(4, 64)
    x[2] = 0
    for dtype in (aiter.dtypes.fp8, torch.int8):
        codes, scale = aiter.per_token_quant_hip(x, quant_dtype=dtype)
        expected, expected_scale = aiter.pertoken_quant(x, quant_dtype=dtype)
        assert torch.equal(codes.float(), expected.float())
        assert torch.equal(scale[:2], expected_scale[:2])
        assert scale.shape == (4, 1)


def test_int8_is_cut_off_and_not_rounded(aiter: ModuleType):
    x = torch.tensor([[127.0, 1.75, -1.75, 0.5, 0, 0, 0, 0]]).to(BF16)
    assert aiter.per_token_quant_hip(x)[0].tolist() == [[127, 1, -1, 0, 0, 0, 0, 0]]


def test_scales_of_groups_lie_row_after_row_or_column_after_column(aiter: ModuleType):
    x, fp8 = normal(3, 256), aiter.dtypes.fp8
    codes, scale = aiter.per_group_quant_hip(x, quant_dtype=fp8)
    turned_codes, turned = aiter.per_group_quant_hip(x, quant_dtype=fp8, transpose_scale=True)
    assert torch.equal(codes.float(), turned_codes.float())
    assert scale.shape == turned.shape == (3, 2)
    assert torch.equal(turned.flatten(), scale.t().flatten())
    assert torch.equal(
        codes.float()[:, :128], aiter.per_token_quant_hip(x[:, :128].contiguous(), quant_dtype=fp8)[0].float()
    )


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"scale": torch.ones(4, 1)}, ValueError, "static per token"),
        ({"x": normal(64, 4).t()}, Refused, "is_contiguous"),
        ({"x": torch.randn(4, 64)}, Refused, "torch.float32 is not supported"),
        ({"quant_dtype": torch.float8_e5m2}, Refused, "not support output type"),
        ({"x": normal(4, 60)}, SilentlyWrong, "no whole vectors"),
        ({"x": normal(4 * 64 + 1)[1:].view(4, 64)}, SilentlyWrong, "multiple of 16 bytes"),
    ],
)
def test_what_the_quantizer_of_rows_does_not_take(aiter: ModuleType, change: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        aiter.per_token_quant_hip(**({"x": normal(4, 64), "quant_dtype": aiter.dtypes.fp8} | change))


def test_fp8_of_the_other_architecture_is_refused(aiter: ModuleType):
    with pytest.raises(Refused, match="not support output type"):
        aiter.per_token_quant_hip(normal(4, 64), quant_dtype=torch.float8_e4m3fn)
    operands = rows_operands(aiter)
    published = operands["WQ"].view(torch.float8_e4m3fn)
    with pytest.raises(Refused, match="both be int8/fp8"):
        aiter.gemm_a8w8(**(operands | {"WQ": published}))
    with pytest.raises(AssertionError, match="only support fp8"):
        aiter.gemm_a8w8_bpreshuffle(**(operands | {"WQ": published}))


@pytest.mark.parametrize("dtype", ["fp8", "i8"])
def test_a_product_of_rows_scales_rows_and_columns(aiter: ModuleType, dtype: str):
    operands = rows_operands(aiter, dtype=getattr(aiter.dtypes, dtype))
    bias = normal(16)
    x = operands["XQ"].float() * operands["x_scale"]
    w = operands["WQ"].float() * operands["w_scale"]
    torch.testing.assert_close(
        aiter.gemm_a8w8(**operands, bias=bias), (x @ w.t() + bias.float()).to(BF16), rtol=1e-2, atol=1e-2
    )


def test_a_shuffled_weight_gives_the_same_product(aiter: ModuleType):
    operands = rows_operands(aiter)
    shuffled = operands | {"WQ": module("ops.shuffle").shuffle_weight(operands["WQ"])}
    assert torch.equal(aiter.gemm_a8w8_bpreshuffle(**shuffled), aiter.gemm_a8w8(**operands))
    with pytest.raises(SilentlyWrong, match="not shuffled"):
        aiter.gemm_a8w8_bpreshuffle(**operands)
    with pytest.raises(SilentlyWrong, match="WQ is shuffled"):
        aiter.gemm_a8w8(**shuffled)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"bias": normal(16).half()}, Refused, "bias should have the same dtype"),
        ({"bias": normal(8)}, SilentlyWrong, "bias has shape"),
        ({"dtype": torch.float32}, Refused, "output dtype"),
        ({"x_scale": torch.ones(5, 1).double()}, Refused, "Scales should have the same dtype"),
        ({"x_scale": torch.ones(16, 1)}, SilentlyWrong, "x_scale has 16 scales"),
        ({"w_scale": torch.ones(1)}, SilentlyWrong, "w_scale has 1 scales"),
    ],
)
def test_what_a_product_of_rows_does_not_take(aiter: ModuleType, change: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        aiter.gemm_a8w8(**(rows_operands(aiter) | change))


@pytest.mark.parametrize(("n", "k"), [(16, 40), (12, 64)])
def test_sizes_that_composable_kernel_does_not_load_are_refused(aiter: ModuleType, n: int, k: int):
    with pytest.raises(Refused, match="This GEMM is not supported"):
        aiter.gemm_a8w8(**rows_operands(aiter, n=n, k=k))


@pytest.mark.parametrize("k", [128, 224])
def test_untuned_products_of_shuffled_weights_have_least_inputs(aiter: ModuleType, k: int):
    with pytest.raises(Refused, match="Unsupported K"):
        aiter.gemm_a8w8_bpreshuffle(**rows_operands(aiter, k=k, shuffled=True))


def test_a_product_of_shuffled_rows_has_no_bias(aiter: ModuleType):
    with pytest.raises(AssertionError, match="bias"):
        aiter.gemm_a8w8_bpreshuffle(**rows_operands(aiter, shuffled=True), bias=normal(16))


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_product_of_tiles_scales_blocks(aiter: ModuleType, shuffled: bool):
    torch.manual_seed(0)
    plain = tile_operands(aiter)
    x = plain["XQ"].float() * plain["x_scale"].repeat_interleave(128, 1)
    w = plain["WQ"].float() * plain["w_scale"].repeat_interleave(128, 0)[:144].repeat_interleave(128, 1)
    expected = (x @ w.t()).to(BF16)
    if not shuffled:
        assert torch.equal(aiter.gemm_a8w8_blockscale(**plain), expected)
        return
    given = plain | {"WQ": module("ops.shuffle").shuffle_weight(plain["WQ"])}
    by_column = plain["x_scale"].t().contiguous().t()
    assert torch.equal(aiter.gemm_a8w8_blockscale_bpreshuffle(**(given | {"x_scale": by_column})), expected)
    with pytest.raises(SilentlyWrong, match="row after row"):
        aiter.gemm_a8w8_blockscale_bpreshuffle(**given)


def test_scales_that_a_quantizer_turned_are_those_of_shuffled_products_alone(aiter: ModuleType):
    torch.manual_seed(0)
    turned = tile_operands(aiter, shuffled=True)
    torch.manual_seed(0)
    plain = tile_operands(aiter)
    plain["w_scale"] = turned["w_scale"]
    assert torch.equal(aiter.gemm_a8w8_blockscale_bpreshuffle(**turned), aiter.gemm_a8w8_blockscale(**plain))
    with pytest.raises(SilentlyWrong, match="column after column"):
        aiter.gemm_a8w8_blockscale(**(plain | {"x_scale": turned["x_scale"]}))
    with pytest.raises(SilentlyWrong, match="row after row"):
        aiter.gemm_a8w8_blockscale_bpreshuffle(**(turned | {"x_scale": turned["x_scale"].clone()}))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"dtype": torch.float32}, AssertionError, "not supported"),
        ({"w_scale": torch.ones(2, 1)}, SilentlyWrong, "w_scale has shape"),
        ({"w_scale": torch.ones(2, 2).t()[:, :2].double()}, Refused, "scales"),
        ({"x_scale": torch.ones(5, 1)}, SilentlyWrong, "x_scale has shape"),
    ],
)
def test_what_a_product_of_tiles_does_not_take(aiter: ModuleType, change: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        aiter.gemm_a8w8_blockscale(**(tile_operands(aiter) | change))


@pytest.mark.parametrize(("release", "exponents"), [("git", [125, 126, 127, 127]), ("pypi", [125, 126, 127, 128])])
def test_releases_round_the_scale_of_a_block_otherwise(release: str, exponents: list[int]):
    """git keeps a block that reaches 6 times its scale, where PyPI doubles the scale."""
    with emulated_aiter(release, "gfx950"):
        x = torch.zeros(1, 128).to(BF16)
        x[0, ::32] = torch.tensor([1.0, 1.75, 5.0, 6.0])
        _, scale = importlib.import_module("aiter").per_1x32_f4_quant_hip(x)
    assert scale.view(torch.uint8).tolist() == [exponents]


@pytest.fixture(params=["git", "pypi"])
def mi355x(request: pytest.FixtureRequest):
    with emulated_aiter(request.param, "gfx950"):
        yield importlib.import_module("aiter")


def fp4_operands(aiter: ModuleType, m=5, n=128, k=256):
    a, a_scale = aiter.per_1x32_f4_quant_hip(normal(m, k), shuffle=True)
    b, b_scale = aiter.per_1x32_f4_quant_hip(normal(n, k))
    shuffle, order = module("ops.shuffle").shuffle_weight, module("utility.fp4_utils").e8m0_shuffle
    return {"A": a, "B": shuffle(b.view(torch.uint8)), "A_scale": a_scale, "B_scale": order(b_scale.view(torch.uint8))}


def multiply_fp4(aiter: ModuleType, **operands: torch.Tensor) -> torch.Tensor:
    if "pypi" not in (aiter.__file__ or ""):
        return aiter.gemm_a4w4(**operands)
    out = torch.empty(32, operands["B"].shape[0], dtype=BF16)
    return aiter.gemm_a4w4(**operands, out=out)[: operands["A"].shape[0]]


def test_a_product_of_mxfp4_is_that_of_its_numbers(mi355x: ModuleType):
    torch.manual_seed(0)
    got = multiply_fp4(mi355x, **fp4_operands(mi355x))
    torch.manual_seed(0)
    numbers = []
    for shape in ((5, 256), (128, 256)):
        codes, scale = mi355x.per_1x32_f4_quant_hip(normal(*shape))
        numbers.append(mx.decode(codes) * mx.exponents_as_numbers(scale).repeat_interleave(32, 1))
    torch.testing.assert_close(got, (numbers[0] @ numbers[1].t()).to(BF16), rtol=1e-2, atol=1e-2)


def test_scales_in_order_are_tiles_of_32_rows_and_8_columns():
    scale = torch.arange(64 * 16, dtype=torch.int32).remainder(251).to(torch.uint8).view(64, 16)
    ordered = mx.in_order(scale)
    assert ordered.shape == (256, 16)
    assert torch.equal(mx.out_of_order(ordered, 64, 16), scale)
    flat = ordered.flatten()
    assert flat[:4].tolist() == [scale[0, 0], scale[16, 0], scale[0, 4], scale[16, 4]]
    assert flat[4].item() == scale[1, 0]


def test_codes_of_four_bits_are_the_nearest_and_even_ones():
    values = torch.tensor([[0.25, 0.75, 1.25, 2.5, 5.0, 9.0, -0.3, -0.0]])
    assert mx.decode(mx.encode(values)).tolist() == [[0.0, 1.0, 1.0, 2.0, 4.0, 6.0, -0.5, -0.0]]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda given: {"A": given["A"].view(torch.uint8)}, Refused, "Unsupported input_type"),
        (lambda given: {"A_scale": given["A_scale"].view(torch.uint8)[:, :4]}, SilentlyWrong, "A_scale has shape"),
        (lambda given: {"B_scale": torch.ones(256, 8, dtype=torch.uint8)}, SilentlyWrong, "not put in order"),
        (lambda given: {"B_scale": torch.ones(256, 8)}, SilentlyWrong, "exponents of one byte"),
        (lambda given: {"B": torch.randint(0, 255, (128, 128), dtype=torch.uint8)}, SilentlyWrong, "not shuffled"),
        (lambda given: {"B": given["B"][:64]}, Refused, "heuristic kernel"),
        (lambda given: {"B": given["B"][:, :64]}, SilentlyWrong, "B has shape"),
    ],
)
def test_what_a_product_of_mxfp4_does_not_take(mi355x: ModuleType, change, error: type, words: str):
    operands = fp4_operands(mi355x)
    with pytest.raises(error, match=words):
        multiply_fp4(mi355x, **(operands | change(operands)))


def test_mi300x_has_no_mxfp4(aiter: ModuleType):
    with pytest.raises(Refused, match="Float4"):
        aiter.per_1x32_f4_quant_hip(normal(4, 256))
    data = torch.zeros(32, 128, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="gfx942"):
        multiply_fp4(aiter, A=data, B=data, A_scale=data, B_scale=data)


def test_the_release_on_pypi_writes_whole_tiles_of_rows_into_its_callers_memory():
    with emulated_aiter("pypi", "gfx950"):
        aiter = importlib.import_module("aiter")
        operands = fp4_operands(aiter)
        with pytest.raises(AssertionError, match="multiples of 32"):
            aiter.gemm_a4w4(**operands, out=torch.empty(5, 128, dtype=BF16))
        with pytest.raises(Refused, match="BFloat16"):
            aiter.gemm_a4w4(**operands, out=torch.empty(32, 128))
        out = torch.zeros(32, 128, dtype=BF16)
        assert aiter.gemm_a4w4(**operands, out=out) is out
        assert out[5:].isnan().all()
