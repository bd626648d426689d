"""Experts in int4 by groups, emulated: bytes as AITER's helpers pack them, and what is found wrong."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong
from tests.aiter_emulator.semantics.int4_experts import unpacked

BF16 = torch.bfloat16


def test_eight_numbers_lie_in_four_bytes_the_fifth_above_the_first(git_aiter: ModuleType):
    from aiter.ops.shuffle import pack_int8_to_packed_int4

    numbers = torch.tensor([0, 1, 2, 3, -1, -2, -8, 7], dtype=torch.int8)
    packed = pack_int8_to_packed_int4(numbers.repeat(1, 1, 2))
    assert [f"{byte & 255:02x}" for byte in packed.tolist()] == ["f0", "e1", "82", "73"] * 2
    assert torch.equal(unpacked(packed.view(1, 1, 8)), numbers.repeat(1, 1, 2))


def test_scales_of_two_neighboring_groups_lie_side_by_side(git_aiter: ModuleType):
    from aiter.ops.shuffle import shuffle_scale_for_int4

    scale = torch.arange(12).view(1, 4, 3)
    assert shuffle_scale_for_int4(scale.to(BF16)).flatten().tolist() == [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
    assert torch.equal(shuffle_scale_for_int4(scale.float()), scale.float())
    with pytest.raises(ValueError, match="only supports group_size=32"):
        shuffle_scale_for_int4(scale, 64)


def call(aiter: ModuleType, inter: int = 256, hidden: int = 256, **changed: Any) -> torch.Tensor:
    """One expert of ones, and what it was given instead in `changed`."""
    from aiter.fused_moe import fused_moe
    from aiter.ops.shuffle import pack_int8_to_packed_int4, shuffle_weight

    def codes(rows: int, columns: int) -> torch.Tensor:
        numbers = (torch.arange(rows * columns) % 13 - 6).to(torch.int8).view(1, rows, columns)
        packed = pack_int8_to_packed_int4(shuffle_weight(numbers, (16, 16)))
        named = packed.view(1, rows, columns // 2).view(aiter.dtypes.i4x2)
        named.is_shuffled = True
        return named

    given: dict[str, Any] = {
        "hidden_states": torch.ones(2, hidden, dtype=BF16) / 64,
        "w1": codes(2 * inter, hidden),
        "w2": codes(hidden, inter),
        "topk_weight": torch.ones(2, 1),
        "topk_ids": torch.zeros(2, 1, dtype=torch.int32),
        "quant_type": aiter.QuantType.per_1x32,
        "w1_scale": torch.ones(2 * inter * hidden // 32, dtype=BF16),
        "w2_scale": torch.ones(inter * hidden // 32, dtype=BF16),
    } | changed
    return fused_moe(**given)


def test_products_are_those_of_the_numbers(git_aiter: ModuleType):
    numbers = (torch.arange(512 * 256) % 13 - 6).view(512, 256).float()
    gate, up = (torch.ones(2, 256) / 64 @ numbers.t()).split(256, dim=1)
    between = (torch.nn.functional.silu(gate) * up).to(BF16).float()
    torch.testing.assert_close(call(git_aiter), (between @ numbers[:256].t()).to(BF16))


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"hidden": 384}, Refused, "no kernel for hidden 384"),
        ({"inter": 128}, Refused, "inter 128"),
        ({"w1_scale": None}, AssertionError, "w1_scale is missing"),
        ({"w1_scale": torch.ones(4096)}, SilentlyWrong, "w1_scale is torch.float32"),
        ({"w2_scale": torch.ones(8, dtype=BF16)}, SilentlyWrong, "w2_scale has 8 scales"),
        ({"hidden_states": torch.ones(2, 256, dtype=torch.float16)}, SilentlyWrong, "rows in bf16"),
        ({"hidden_states": torch.ones(256, 2, dtype=BF16).t()}, SilentlyWrong, "hidden_states has strides"),
    ],
)
def test_what_is_wrong_is_found(git_aiter: ModuleType, changed: dict[str, Any], error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        call(git_aiter, **changed)


def test_a_weight_that_is_not_shuffled_or_lost_its_mark_is_found(git_aiter: ModuleType):
    plain = (torch.arange(512 * 128) % 251).to(torch.uint8).view(1, 512, 128).view(git_aiter.dtypes.i4x2)
    with pytest.raises(SilentlyWrong, match="lost is_shuffled"):
        call(git_aiter, w1=plain)
    plain.is_shuffled = True
    with pytest.raises(SilentlyWrong, match="is not shuffled"):
        call(git_aiter, w1=plain)
