"""Batched products that round their rows, emulated."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from emulated_aiter import RELEASES, emulated_aiter
from tests.aiter_emulator.semantics import mx
from tests.aiter_emulator.semantics.errors import SilentlyWrong

BF16 = torch.bfloat16
A8W8 = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
A16W4, INTO = "batched_gemm_a16wfp4", "batched_gemm_afp4wfp4_pre_quant"


@pytest.fixture(params=RELEASES)
def mi355x(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    with emulated_aiter(request.param, "gfx950"):
        yield importlib.import_module("aiter")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).to(BF16)


def triton(name: str):
    return getattr(importlib.import_module(f"aiter.ops.triton.{name}"), name)


def fp8_operands(aiter: ModuleType, b=3, m=5, n=7, k=192) -> dict:
    weight = (torch.randn(b, n, k) * 20).to(aiter.dtypes.fp8)
    return {"X": normal(b, m, k), "WQ": weight, "w_scale": torch.tensor([0.5])}


def fp4_operands(b=3, m=5, n=8, k=128) -> dict:
    codes = torch.randint(0, 256, (b, n, k // 2), dtype=torch.uint8)
    return {"x": normal(b, m, k), "w": codes, "w_scales": torch.randint(120, 130, (b, n, k // 32), dtype=torch.uint8)}


def in_mxfp4(release_of: ModuleType, operands: dict, **options) -> torch.Tensor:
    """The product by the function that the release has."""
    if "git" in (release_of.__file__ or "").split("/"):
        return triton(A16W4)(**operands, **options)
    x, turned = operands["x"], options.pop("transpose_bm", False)
    shape = (x.shape[0], x.shape[1], operands["w"].shape[1])
    y = torch.empty(shape[1], shape[0], shape[2], dtype=BF16).transpose(0, 1) if turned else torch.empty(shape).to(BF16)
    triton(INTO)(**operands, y=y)
    return y.transpose(0, 1) if turned else y


def test_each_group_of_a_row_has_a_scale_and_all_weights_one(aiter: ModuleType):
    operands = fp8_operands(aiter)
    operands["X"][0, 0, :128] = 0
    operands["X"][1, 1, 128:] *= 1000
    operands["WQ"].view(torch.uint8)[1, 0, 128:] = 0
    largest = torch.finfo(aiter.dtypes.fp8).max
    parts = [operands["X"].float()[..., columns] for columns in (slice(128), slice(128, 192))]
    scales = [part.abs().amax(-1, keepdim=True).clamp(min=1e-10) / largest for part in parts]
    rows = [(part / scale).to(aiter.dtypes.fp8).float() * scale for part, scale in zip(parts, scales, strict=True)]
    expected = torch.bmm(torch.cat(rows, -1), operands["WQ"].float().transpose(1, 2) * 0.5)
    torch.testing.assert_close(triton(A8W8)(**operands).float(), expected, rtol=1e-2, atol=8)


def test_both_first_dimensions_may_be_turned_and_strides_are_looked_at(aiter: ModuleType):
    operands = fp8_operands(aiter)
    expected, x = triton(A8W8)(**operands), operands["X"]
    turned = operands | {"X": x.transpose(0, 1), "transpose_bm_in": True}
    assert torch.equal(triton(A8W8)(**turned), expected)
    assert torch.equal(triton(A8W8)(**operands, transpose_bm=True), expected.transpose(0, 1))
    out = torch.empty(5, 3, 7, dtype=BF16)
    assert triton(A8W8)(**operands, YQ=out, transpose_bm=True) is out
    assert torch.equal(out, expected.transpose(0, 1))
    bias = normal(3, 1, 7)
    torch.testing.assert_close(triton(A8W8)(**operands, bias=bias), expected + bias, rtol=2e-2, atol=1e-2)
    wide = torch.zeros(3, 7, 200).to(aiter.dtypes.fp8)
    wide.view(torch.uint8)[..., :192] = operands["WQ"].view(torch.uint8)
    assert torch.equal(triton(A8W8)(**(operands | {"WQ": wide[..., :192]})), expected)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"X": normal(2, 5, 192)}, AssertionError, "Incompatible Batch"),
        ({"X": normal(3, 5, 128)}, AssertionError, "Incompatible K"),
        ({"group_size": 96}, AssertionError, "power of 2"),
        ({"dtype": torch.float32}, AssertionError, "not supported"),
        ({"splitK": 2}, AssertionError, "splitK"),
        ({"w_scale": torch.ones(3)}, SilentlyWrong, "has 3 scales, the kernel reads the first"),
        ({"YQ": torch.empty(5, 3, 7, dtype=BF16)}, AssertionError, "Output dimension error"),
        ({"bias": normal(3, 7)}, SilentlyWrong, "bias has shape"),
        ({"bias": normal(3, 1, 14)[..., ::2]}, SilentlyWrong, "columns that lie apart"),
        ({"X": torch.zeros(3, 5, 192).half()}, SilentlyWrong, "zeros in float16 is divided by 0"),
        ({"WQ": torch.zeros(3, 7, 192).to(torch.float8_e5m2)}, SilentlyWrong, "WQ is torch.float8_e5m2"),
    ],
)
def test_what_the_product_in_fp8_does_not_take(aiter: ModuleType, change: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        triton(A8W8)(**(fp8_operands(aiter) | change))


def test_no_product_takes_a_shuffled_weight(mi355x: ModuleType):
    shuffle = importlib.import_module("aiter.ops.shuffle").shuffle_weight
    operands = fp8_operands(mi355x, n=16)
    with pytest.raises(SilentlyWrong, match="WQ is shuffled"):
        triton(A8W8)(**(operands | {"WQ": shuffle(operands["WQ"])}))
    operands = fp4_operands(n=16)
    with pytest.raises(SilentlyWrong, match="w is shuffled"):
        in_mxfp4(mi355x, operands | {"w": shuffle(operands["w"])})


def test_rows_in_mxfp4_have_the_scale_of_their_largest_number_and_the_nearest_codes(mi355x: ModuleType):
    operands = fp4_operands()
    # 7 = 1.75 * 4 counts as 8, of which a block holds up to 12; 6.9 counts as 4.
    operands["x"][0, 0] = torch.tensor([7.0, 0.6, -5.1, 1.1] + [0.2] * 28 + [6.9, 0.6, -5.1, 1.1] + [0.2] * 92)
    block = mx.decode(operands["w"])[0] * mx.spread(mx.exponents_as_numbers(operands["w_scales"]))[0]
    row = torch.tensor([8.0, 1.0, -6.0, 1.0] + [0.0] * 28 + [6.0, 0.5, -6.0, 1.0] + [0.0] * 28)
    row = torch.cat([row, torch.tensor([0.1875] * 64)])
    expected = (block @ row).to(BF16)
    torch.testing.assert_close(in_mxfp4(mi355x, operands)[0, 0], expected, rtol=1e-2, atol=1e-2)
    turned = in_mxfp4(mi355x, operands, transpose_bm=True)
    assert torch.equal(turned, in_mxfp4(mi355x, operands).transpose(0, 1))


def test_releases_differ_in_the_middle_of_two_codes():
    operands = fp4_operands(b=1, m=1, n=1)
    operands["x"][:] = torch.tensor([4.0, 2.5, 0.25, -2.5] + [0.0] * 124)
    operands["w"][:] = 0x22  # ones
    operands["w_scales"][:] = 127
    sums = {}
    for release in RELEASES:
        with emulated_aiter(release, "gfx950"):
            doubled = operands | {"x": operands["x"] * torch.tensor([1, 1, 1, 0] * 32)}
            sums[release] = in_mxfp4(importlib.import_module("aiter"), doubled).item()
    assert sums == {"git": 6.0, "pypi": 7.5}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": normal(2, 5, 128)}, AssertionError, "batches"),
        ({"x": normal(3, 5, 256)}, SilentlyWrong, "x has shape"),
        ({"w_scales": torch.zeros(3, 8, 8, dtype=torch.uint8)}, SilentlyWrong, "w_scales has shape"),
        ({"w_scales": torch.zeros(3, 8, 4)}, SilentlyWrong, "are bytes"),
        (fp4_operands(k=192), SilentlyWrong, "of 192 inputs the kernel reads the first half"),
    ],
)
def test_what_the_product_in_mxfp4_does_not_take(mi355x: ModuleType, change: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        in_mxfp4(mi355x, fp4_operands() | change)


def test_mxfp4_is_multiplied_on_mi355x_alone(aiter: ModuleType):
    with pytest.raises(AssertionError, match="MXFP4 is not available"):
        in_mxfp4(aiter, fp4_operands())


def test_the_release_on_pypi_writes_what_its_caller_allocated():
    with emulated_aiter("pypi", "gfx950"):
        importlib.import_module("aiter")
        with pytest.raises(AttributeError, match="shape"):
            triton(INTO)(**fp4_operands())
        with pytest.raises(AssertionError, match="Output dimension"):
            triton(INTO)(**fp4_operands(), y=torch.empty(5, 3, 8))


def plain_operands(m=5, n=7, k=1024) -> dict:
    return {name: tensor[0] for name, tensor in fp4_operands(1, m, n, k).items()}


@pytest.fixture
def gemm_a16wfp4(git_mi355x: ModuleType):
    return triton("gemm_a16wfp4")


@pytest.fixture
def git_mi355x() -> Iterator[ModuleType]:
    with emulated_aiter("git", "gfx950"):
        yield importlib.import_module("aiter")


@pytest.mark.parametrize("size", [64, 128, 512, 1024])
def test_the_product_without_batches_is_a_batch_of_one(gemm_a16wfp4, size: int):
    batch = fp4_operands(1, 5, 7, size)
    operands = {name: tensor[0] for name, tensor in batch.items()}
    assert torch.equal(gemm_a16wfp4(**operands), triton(A16W4)(**batch)[0])
    y = torch.empty(5, 7, dtype=torch.float16)
    assert gemm_a16wfp4(**operands, dtype=torch.float16, y=y) is y
    assert torch.equal(y, triton(A16W4)(**batch, dtype=torch.float16)[0])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"x": normal(5, 512)}, SilentlyWrong, "x has shape"),
        ({"w_scales": torch.zeros(7, 16, dtype=torch.uint8)}, SilentlyWrong, "w_scales has shape"),
        ({"w_scales": torch.zeros(7, 32)}, SilentlyWrong, "are bytes"),
        ({"y": torch.empty(7, 5, dtype=BF16)}, SilentlyWrong, "y has shape"),
        (plain_operands(k=768), SilentlyWrong, "of 768 inputs the last tile of 512 reads scales that are not there"),
        (plain_operands(k=192), SilentlyWrong, "last tile of 256"),
        (plain_operands(k=32), SilentlyWrong, "last tile of 64"),
        ({"atomic_add": True}, NotImplementedError, "no atomic sums"),
        ({"config": {"BLOCK_SIZE_K": 256}}, NotImplementedError, "tiles of its own table"),
    ],
)
def test_what_the_product_without_batches_does_not_take(gemm_a16wfp4, change: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        gemm_a16wfp4(**(plain_operands() | change))


def test_the_product_without_batches_is_of_plain_weights_on_mi355x_alone(git_mi355x: ModuleType):
    shuffle, operands = importlib.import_module("aiter.ops.shuffle").shuffle_weight, plain_operands(n=16)
    with pytest.raises(SilentlyWrong, match="w is shuffled"):
        triton("gemm_a16wfp4")(**(operands | {"w": shuffle(operands["w"])}))
    with emulated_aiter("git", "gfx942"), pytest.raises(AssertionError, match="MXFP4 is not available"):
        triton("gemm_a16wfp4")(**operands)


def test_rows_that_are_not_rounded_are_refused():
    with emulated_aiter("git", "gfx950"):
        importlib.import_module("aiter")
        with pytest.raises(AssertionError, match="prequant = False is not yet supported"):
            triton(A16W4)(**fp4_operands(), prequant=False)
