"""fused_moe of quantized experts, emulated."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest
import torch

from emulated_aiter import emulated_aiter
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16
EXPERTS, TOKENS, HIDDEN, INTER = 3, 4, 256, 128


def module(name: str) -> ModuleType:
    return importlib.import_module(f"aiter.{name}")


def call(aiter: ModuleType, kind: str = "per_Token", **changes: Any) -> torch.Tensor:
    shuffle, fp8 = module("ops.shuffle").shuffle_weight, aiter.dtypes.fp8
    w1 = torch.randn(EXPERTS, 2 * INTER, HIDDEN).to(fp8)
    w2 = torch.randn(EXPERTS, HIDDEN, INTER).to(fp8)
    tile = 128 if kind == "per_1x128" else None
    scales = [
        torch.rand(EXPERTS, rows // tile, columns // tile) if tile else torch.rand(EXPERTS, rows, 1)
        for _, rows, columns in (w1.shape, w2.shape)
    ]
    given: dict[str, Any] = {
        "hidden_states": torch.randn(TOKENS, HIDDEN).to(BF16),
        "w1": shuffle(w1),
        "w2": shuffle(w2),
        "topk_weight": torch.rand(TOKENS, 2),
        "topk_ids": torch.randint(0, EXPERTS, (TOKENS, 2), dtype=torch.int32),
        "quant_type": getattr(aiter.QuantType, kind),
        "w1_scale": scales[0],
        "w2_scale": scales[1],
    }
    return module("fused_moe").fused_moe(**(given | changes))


@pytest.mark.parametrize("kind", ["per_Token", "per_1x128"])
def test_experts_without_weight_in_the_sum_give_nothing(aiter: ModuleType, kind: str):
    out = call(aiter, kind, topk_weight=torch.zeros(TOKENS, 2))
    assert out.dtype == BF16
    assert not out.any()
    assert call(aiter, kind).any()


@pytest.mark.parametrize("kind", ["per_Token", "per_1x128"])
def test_scales_of_the_weights_multiply(aiter: ModuleType, kind: str):
    torch.manual_seed(0)
    one = call(aiter, kind)
    torch.manual_seed(0)
    shape = (EXPERTS, HIDDEN, 1) if kind == "per_Token" else (EXPERTS, HIDDEN // 128, INTER // 128)
    zero = call(aiter, kind, w2_scale=torch.zeros(shape))
    assert one.any()
    assert not zero.any()


@pytest.mark.parametrize(
    ("kind", "changes", "error", "words"),
    [
        ("per_Token", {"w1_scale": torch.rand(EXPERTS, 2 * INTER)}, SilentlyWrong, "w1_scale has shape"),
        ("per_Token", {"w2_scale": torch.rand(EXPERTS, HIDDEN, 1).double()}, SilentlyWrong, "w2_scale is"),
        ("per_1x128", {"w1_scale": torch.rand(EXPERTS, 2 * INTER, 1)}, SilentlyWrong, "w1_scale has shape"),
        ("per_Token", {"w1_scale": None}, AssertionError, "w1_scale is missing"),
        ("per_Token", {"hidden_states": torch.randn(TOKENS, HIDDEN).half()}, SilentlyWrong, "stores bf16"),
        ("per_Token", {"hidden_states": torch.randn(HIDDEN, TOKENS).to(BF16).t()}, SilentlyWrong, "has strides"),
        ("per_Token", {"topk_ids": torch.zeros(TOKENS, 2, dtype=torch.int64)}, SilentlyWrong, "topk_ids is"),
        ("per_Token", {"topk_weight": torch.zeros(TOKENS, 2).double()}, Refused, "FP32"),
    ],
)
def test_what_quantized_experts_do_not_take(aiter: ModuleType, kind: str, changes: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        call(aiter, kind, **changes)


def test_weights_that_are_not_shuffled_or_of_the_other_machine_are_found(aiter: ModuleType):
    plain = torch.randn(EXPERTS, HIDDEN, INTER).to(aiter.dtypes.fp8)
    with pytest.raises(SilentlyWrong, match="w2 is not shuffled"):
        call(aiter, w2=plain)
    with pytest.raises(SilentlyWrong, match="w2 is torch.float8_e4m3fn,"):
        call(aiter, w2=plain.view(torch.float8_e4m3fn))


def test_git_reads_a_copy_of_a_shuffled_weight_in_the_plain_order(git_aiter: ModuleType):
    shuffled = module("ops.shuffle").shuffle_weight(torch.randn(EXPERTS, HIDDEN, INTER).to(git_aiter.dtypes.fp8))
    with pytest.raises(SilentlyWrong, match="lost is_shuffled"):
        call(git_aiter, w2=shuffled.clone())


def test_mi300x_has_no_experts_in_mxfp4(aiter: ModuleType):
    w1 = torch.zeros(EXPERTS, 2 * INTER, HIDDEN // 2, dtype=torch.uint8)
    w2 = torch.zeros(EXPERTS, HIDDEN, INTER // 2, dtype=torch.uint8)
    with pytest.raises(Refused, match="gfx942"):
        call(aiter, "per_1x32", w1=w1, w2=w2)


@pytest.mark.parametrize("release", ["git", "pypi"])
def test_scales_of_mxfp4_experts_are_in_order(release: str):
    with emulated_aiter(release, "gfx950"):
        aiter = importlib.import_module("aiter")
        codes = {"w1": (EXPERTS, 512, 128), "w2": (EXPERTS, 256, 128)}
        shuffle, order = module("ops.shuffle").shuffle_weight, module("utility.fp4_utils").e8m0_shuffle
        data = {
            name: shuffle(torch.randint(0, 255, shape, dtype=torch.uint8).view(aiter.dtypes.fp4x2))
            for name, shape in codes.items()
        }
        scale = {
            f"{name}_scale": torch.randint(120, 130, (shape[0] * shape[1], 8), dtype=torch.uint8)
            for name, shape in codes.items()
        }
        ordered = {name: order(one) for name, one in scale.items()}
        assert call(aiter, "per_1x32", **data, **ordered).any()
        with pytest.raises(SilentlyWrong, match="w2_scale was not put in order"):
            call(aiter, "per_1x32", **data, **(ordered | {"w2_scale": scale["w2_scale"]}))
