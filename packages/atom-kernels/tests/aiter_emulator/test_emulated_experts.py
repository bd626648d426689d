"""Experts and the order of their tokens, emulated."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16
TOKENS, HIDDEN, INTER, EXPERTS = 6, 128, 128, 4
CLOSE = {"rtol": 2e-2, "atol": 2e-2}


def moe() -> ModuleType:
    return importlib.import_module("aiter.fused_moe")


def shuffle(weight: torch.Tensor) -> torch.Tensor:
    return importlib.import_module("aiter.ops.shuffle").shuffle_weight(weight)


def choices(experts: int = EXPERTS, topk: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.rand(TOKENS, experts).argsort(-1)[:, :topk].to(torch.int32)
    return torch.rand(TOKENS, topk), ids


class Case:
    """Plain weights, and what fused_moe is given of them."""

    def __init__(self, inter: int = INTER, gated: bool = True, **changes) -> None:
        self.x = torch.randn(TOKENS, HIDDEN).to(BF16)
        self.w1 = (torch.randn(EXPERTS, inter * (2 if gated else 1), HIDDEN) * HIDDEN**-0.5).to(BF16)
        self.w2 = (torch.randn(EXPERTS, HIDDEN, inter) * inter**-0.5).to(BF16)
        weight, ids = choices()
        self.given = {
            "hidden_states": self.x,
            "w1": shuffle(self.w1),
            "w2": shuffle(self.w2),
            "topk_weight": weight,
            "topk_ids": ids,
        }
        for name, change in changes.items():
            self.given[name] = change(self.given[name]) if callable(change) else change

    def expected(self, rows: list[int], act=F.silu, weigh_first: bool = False) -> torch.Tensor:
        """One token and one choice at a time; `rows` tells the row of the weights of each id, or -1."""
        inter, result = self.w2.shape[2], torch.zeros(TOKENS, HIDDEN)
        for token in range(TOKENS):
            for weight, expert in zip(self.given["topk_weight"][token], self.given["topk_ids"][token], strict=True):
                row = rows[expert]
                if row < 0:
                    continue
                first = self.w1[row].float() @ self.x[token].float() * (weight if weigh_first else 1)
                between = act(first[:inter]) * first[inter:] if len(first) == 2 * inter else act(first)
                result[token] += self.w2[row].float() @ between * (1 if weigh_first else weight)
        return result.to(BF16)


@pytest.mark.parametrize("weigh_first", [False, True])
@pytest.mark.parametrize(("activation", "act"), [("Silu", F.silu), ("Gelu", F.gelu)])
def test_experts_are_weighted_and_summed(aiter: ModuleType, activation: str, act, weigh_first: bool):
    case = Case()
    kind = getattr(aiter.ActivationType, activation)
    out = moe().fused_moe(**case.given, activation=kind, doweight_stage1=weigh_first)
    torch.testing.assert_close(out, case.expected(list(range(EXPERTS)), act, weigh_first), **CLOSE)


def test_experts_may_have_no_gate(aiter: ModuleType):
    case = Case(gated=False)
    torch.testing.assert_close(moe().fused_moe(**case.given), case.expected(list(range(EXPERTS))), **CLOSE)


def test_experts_of_other_ranks_are_masked(aiter: ModuleType):
    case = Case()
    case.given["topk_weight"], case.given["topk_ids"] = choices(experts=7)
    rows = [-1, 0, -1, 1, 2, 3, -1]
    mask = torch.tensor([int(row >= 0) for row in rows], dtype=torch.int32)
    torch.testing.assert_close(moe().fused_moe(**case.given, expert_mask=mask), case.expected(rows), **CLOSE)


def test_tokens_that_are_not_there_are_not_computed(aiter: ModuleType):
    case = Case()
    out = moe().fused_moe(**case.given, num_local_tokens=torch.tensor([4], dtype=torch.int32))
    torch.testing.assert_close(out[:4], case.expected(list(range(EXPERTS)))[:4], **CLOSE)
    assert out[4:].isnan().all()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"hidden_states": torch.Tensor.float}, AssertionError, "unsupported out dtype"),
        ({"w1": lambda w: w[:, :96]}, AssertionError, "Invalid MoE weight"),
        ({"topk_weight": torch.Tensor.half}, Refused, "topk_weights must be FP32"),
        ({"block_size_M": 48}, Refused, "block_size_M 48"),
        ({"inter": 160}, Refused, "does not support this GEMM problem"),
        ({"topk_ids": torch.Tensor.long}, SilentlyWrong, "topk_ids is torch.int64"),
        ({"topk_ids": lambda ids: ids + 3}, SilentlyWrong, "ids outside of 4"),
        ({"topk_ids": lambda ids: ids.T.contiguous().T}, SilentlyWrong, "topk_ids has strides"),
        ({"hidden_states": torch.Tensor.half}, SilentlyWrong, "w1 is torch.bfloat16"),
        ({"hidden_states": torch.randn(HIDDEN, TOKENS).to(BF16).T}, SilentlyWrong, "hidden_states has strides"),
        ({"expert_mask": torch.tensor([1, 0, 1, 1], dtype=torch.int32)}, SilentlyWrong, "names 3 experts"),
        ({"expert_mask": torch.ones(4)}, SilentlyWrong, "expert_mask is torch.float32"),
        ({"w1": lambda w: w[..., :64]}, SilentlyWrong, "w1 has shape"),
        ({"w2": lambda w: w[:, :64]}, SilentlyWrong, "w2 has shape"),
        ({"topk_ids": lambda ids: ids[:5]}, SilentlyWrong, "topk_ids has shape"),
        ({"topk_weight": lambda weights: weights[:, :1]}, SilentlyWrong, "topk_weights has shape"),
        ({"topk_weight": lambda weights: weights.T.contiguous().T}, SilentlyWrong, "topk_weights has strides"),
        ({"expert_mask": torch.tensor([2, 1, 1, 0], dtype=torch.int32)}, SilentlyWrong, "other numbers"),
        ({"expert_mask": torch.ones(8, dtype=torch.int32)[::2]}, SilentlyWrong, "expert_mask has strides"),
        ({"num_local_tokens": torch.tensor([4])}, SilentlyWrong, "num_local_tokens is torch.int64"),
        ({"bias1": torch.ones(EXPERTS, 2 * INTER)}, SilentlyWrong, "bias1 has no effect"),
    ],
)
def test_experts_refuse_and_find(aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    case = Case(**changes)
    with pytest.raises(error, match=words):
        moe().fused_moe(**case.given)


@pytest.mark.parametrize("name", ["w1", "w2"])
def test_plain_weights_are_found(aiter: ModuleType, name: str):
    case = Case()
    case.given[name] = getattr(case, name)
    with pytest.raises(SilentlyWrong, match=f"{name} is not shuffled"):
        moe().fused_moe(**case.given)


def test_swiglu_is_for_quantized_experts(aiter: ModuleType):
    with pytest.raises(SilentlyWrong, match="activation 2"):
        moe().fused_moe(**Case().given, activation=aiter.ActivationType.Swiglu)


def test_git_reads_the_attribute_of_shuffled_weights_and_knows_gate_modes(git_aiter: ModuleType):
    given = Case(w1=torch.clone).given
    with pytest.raises(SilentlyWrong, match="w1 lost is_shuffled"):
        moe().fused_moe(**given)
    with pytest.raises(SilentlyWrong, match="gate_mode has no effect"):
        moe().fused_moe(**Case().given, gate_mode="interleave")
    with pytest.raises(ValueError, match="GateMode"):
        moe().fused_moe(**Case().given, gate_mode="halves")


def test_the_release_on_pypi_has_no_narrow_experts(pypi_aiter: ModuleType):
    with pytest.raises(Refused, match="inter 64"):
        moe().fused_moe(**Case(inter=64).given)


def test_git_takes_narrow_experts(git_aiter: ModuleType):
    case = Case(inter=64)
    torch.testing.assert_close(moe().fused_moe(**case.given), case.expected(list(range(EXPERTS))), **CLOSE)


def test_sorting_puts_the_tokens_of_an_expert_into_blocks(aiter: ModuleType):
    weights, ids = choices(experts=7)
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 0], dtype=torch.int32)
    sorted_ids, sorted_weights, experts, counts, buffer = moe().moe_sorting(ids, weights, 7, 24, BF16, 4, mask)
    assert (len(sorted_ids), len(experts)) == (TOKENS * 2 + 7 * 4 - 2, 10)
    assert counts[1] == TOKENS
    assert buffer.shape == (TOKENS, 24)
    assert not buffer.any()
    seen = set()
    for place in range(int(counts[0])):
        slot, token = int(sorted_ids[place]) >> 24, int(sorted_ids[place]) & 0xFFFFFF
        if token == TOKENS:
            assert (slot, float(sorted_weights[place])) == (2, 0.0)
            continue
        seen.add((token, slot))
        assert sorted_weights[place] == weights[token, slot]
        assert [0, 2, 3, 5][experts[place // 4]] == ids[token, slot]
    assert seen == {(t, s) for t in range(TOKENS) for s in range(2) if mask[ids[t, s]]}


def test_the_reference_takes_plain_weights(aiter: ModuleType):
    case = Case()
    given = case.given | {"w1": case.w1, "w2": case.w2}
    torch.testing.assert_close(moe().torch_moe(**given), case.expected(list(range(EXPERTS))), **CLOSE)
