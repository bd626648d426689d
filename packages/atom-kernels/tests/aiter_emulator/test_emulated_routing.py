"""Routing of tokens to experts, emulated."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16
ROWS = 5


def results(topk: int, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    """Columns of wider buffers, as persistent ones are."""
    return torch.zeros(rows, topk + 2)[:, :topk], torch.zeros(rows, topk + 2, dtype=torch.int32)[:, :topk]


def distinct(experts: int) -> torch.Tensor:
    """Logits no two of which are equal in a row, in 16 bits."""
    return torch.rand(ROWS, experts).argsort(-1).to(BF16) / 8


def softmax_arguments(experts: int = 16, topk: int = 3, **changes) -> dict:
    weights, ids = results(topk)
    given = {
        "topk_weights": weights,
        "topk_indices": ids,
        "token_expert_indices": torch.empty(ROWS, topk, dtype=torch.int32),
        "gating_output": distinct(experts),
        "need_renorm": True,
    }
    return given | {name: change(given[name]) if callable(change) else change for name, change in changes.items()}


@pytest.mark.parametrize("renorm", [False, True])
def test_softmax_chooses_among_all(aiter: ModuleType, renorm: bool):
    given = softmax_arguments(need_renorm=renorm)
    aiter.topk_softmax(**given)
    values, experts = given["gating_output"].float().softmax(-1).topk(3)
    assert torch.equal(given["topk_indices"].long(), experts)
    torch.testing.assert_close(given["topk_weights"], values / values.sum(-1, keepdim=True) if renorm else values)
    assert torch.equal(given["token_expert_indices"][1].long(), torch.tensor([1, 1 + ROWS, 1 + 2 * ROWS]))


def test_equal_scores_go_to_the_lower_index(aiter: ModuleType):
    given = softmax_arguments(gating_output=torch.zeros(ROWS, 16))
    aiter.topk_softmax(**given)
    assert torch.equal(given["topk_indices"][2].long(), torch.tensor([0, 1, 2]))


def test_git_scores_shared_experts_in_the_last_columns(git_aiter: ModuleType):
    given = softmax_arguments(experts=17, topk=4)
    given["token_expert_indices"] = given["token_expert_indices"][:, :3].contiguous()
    git_aiter.topk_softmax(**given, num_shared_experts=1, shared_expert_scoring_func="sigmoid")
    gating = given["gating_output"].float()
    assert torch.equal(given["topk_indices"][:, :3].long(), gating[:, :16].topk(3).indices)
    assert (given["topk_indices"][:, 3] == 16).all()
    with pytest.raises(Refused, match="sigmoid, not 'softmax'"):
        git_aiter.topk_softmax(**given, num_shared_experts=1, shared_expert_scoring_func="softmax")
    torch.testing.assert_close(given["topk_weights"][:, 3], gating[:, 16].sigmoid())


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"topk_weights": torch.Tensor.half}, Refused, "topk_weights"),
        ({"topk_indices": torch.Tensor.long}, Refused, "topk_ids"),
        ({"gating_output": torch.Tensor.double}, Refused, "gating_output"),
        ({"gating_output": lambda gating: gating.T.contiguous().T}, SilentlyWrong, "gating_output has strides"),
        ({"token_expert_indices": torch.empty(ROWS, 2, dtype=torch.int32)}, SilentlyWrong, "has 2 columns"),
        ({"topk_weights": lambda w: w[:4]}, SilentlyWrong, "topk_weights has shape"),
        ({"topk_weights": torch.zeros(3, ROWS).T}, SilentlyWrong, "topk_weights has strides"),
        ({"token_expert_indices": lambda t: t[:4]}, SilentlyWrong, "token_expert_indices has shape"),
        ({"token_expert_indices": torch.Tensor.long}, SilentlyWrong, "token_expert_indices is torch.int64"),
        ({"token_expert_indices": lambda t: t.T.contiguous().T}, SilentlyWrong, "token_expert_indices has strides"),
        ({"experts": 24}, SilentlyWrong, "topk_weights as contiguous"),
        ({"topk": 17}, SilentlyWrong, "17 of 16"),
    ],
)
def test_softmax_refuses_and_finds(aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        aiter.topk_softmax(**softmax_arguments(**changes))


def test_sigmoid_weighs_the_largest(aiter: ModuleType):
    gating = distinct(16)
    weights, ids = torch.empty(ROWS, 2), torch.empty(ROWS, 2, dtype=torch.int32)
    aiter.topk_sigmoid(weights, ids, gating)
    values, experts = gating.float().topk(2)
    assert torch.equal(ids.long(), experts)
    torch.testing.assert_close(weights, values.sigmoid())
    for wrong, error, words in (
        ((*results(2), gating), SilentlyWrong, "topk_weights has strides"),
        ((weights, ids, gating.double()), Refused, "gating_output"),
        ((weights.double(), ids, gating), Refused, "topk_weights"),
        ((weights, ids.long(), gating), SilentlyWrong, "topk_indices is torch.int64"),
        ((weights[:4], ids[:4], gating), SilentlyWrong, "topk_weights has shape"),
        ((weights, ids[:, :1], gating), SilentlyWrong, "topk_indices has shape"),
    ):
        with pytest.raises(error, match=words):
            aiter.topk_sigmoid(*wrong)


def by_groups(
    scores: torch.Tensor, judged: torch.Tensor, group_size: int, best_of: int, groups: int, topk: int
) -> tuple:
    """Choose one row at a time, as the papers say it."""
    weights, ids = [], []
    for row, judge in zip(scores.tolist(), judged.tolist(), strict=True):
        parts = [judge[i : i + group_size] for i in range(0, len(judge), group_size)]
        ranks = sorted(range(len(parts)), key=lambda i: -sum(sorted(parts[i])[-best_of:]))[:groups]
        allowed = [expert for group in ranks for expert in range(group * group_size, (group + 1) * group_size)]
        chosen = sorted(allowed, key=lambda expert: -judge[expert])[:topk]
        ids.append(chosen)
        weights.append([row[expert] for expert in chosen])
    return torch.tensor(weights), torch.tensor(ids)


def grouped_arguments(experts: int = 32, groups: int = 8, topk_group: int = 3, topk: int = 4, **changes) -> dict:
    weights, ids = results(topk)
    given = {
        "gating_output": torch.randn(ROWS, experts),
        "topk_weights": weights,
        "topk_ids": ids,
        "num_expert_group": groups,
        "topk_group": topk_group,
        "need_renorm": True,
    }
    return given | {name: change(given[name]) if callable(change) else change for name, change in changes.items()}


@pytest.mark.parametrize("is_softmax", [True, False])
def test_the_best_expert_of_a_group_counts_for_it(aiter: ModuleType, is_softmax: bool):
    given = grouped_arguments(groups=4, topk_group=2)
    aiter.grouped_topk(**given, is_softmax=is_softmax, routed_scaling_factor=2.5)
    gating = given["gating_output"]
    scores = gating.softmax(-1) if is_softmax else gating.sigmoid()
    weights, ids = by_groups(scores, scores, 8, 1, 2, 4)
    assert torch.equal(given["topk_ids"].long(), ids)
    torch.testing.assert_close(given["topk_weights"], 2.5 * weights / weights.sum(-1, keepdim=True))


@pytest.mark.parametrize(("groups", "topk_group"), [(8, 3), (1, 1), (2, 2)])
def test_a_bias_chooses_and_does_not_weigh(aiter: ModuleType, groups: int, topk_group: int):
    given, bias = grouped_arguments(groups=groups, topk_group=topk_group), torch.randn(32)
    aiter.biased_grouped_topk(**given, correction_bias=bias, routed_scaling_factor=2.5)
    scores = given["gating_output"].sigmoid()
    weights, ids = by_groups(scores, scores + bias, 32 // groups, 2, topk_group, 4)
    assert torch.equal(given["topk_ids"].long(), ids)
    torch.testing.assert_close(given["topk_weights"], 2.5 * weights / weights.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"groups": 16}, Refused, "Unsupported num_expert_group: 16"),
        ({"topk_ids": torch.zeros(ROWS, 4, dtype=torch.int32)}, Refused, "stride"),
        ({"topk_weights": torch.zeros(ROWS, 6).half()[:, :4]}, Refused, "topk_weights: torch.float16"),
        ({"topk_ids": torch.zeros(ROWS, 6, dtype=torch.int64)[:, :4]}, Refused, "topk_ids: torch.int64"),
        ({"topk_weights": lambda weights: weights[:4]}, SilentlyWrong, "topk_weights has shape"),
        ({"topk_weights": torch.zeros(ROWS, 6, 1).expand(-1, -1, 4)[:, 0]}, SilentlyWrong, "topk_weights has strides"),
        ({"gating_output": torch.Tensor.double}, Refused, "gating_output"),
        ({"experts": 30, "groups": 4}, SilentlyWrong, "30 experts in 4 groups"),
        ({"experts": 36, "groups": 2}, SilentlyWrong, "vector of scores spans two"),
        ({"topk_group": 9}, SilentlyWrong, "9 of 8 groups"),
        ({"topk_group": 1, "topk": 5}, SilentlyWrong, "5 of 4 experts"),
        ({"gating_output": lambda gating: gating.T.contiguous().T}, SilentlyWrong, "gating_output has strides"),
    ],
)
def test_groups_refuse_and_find(aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    given = grouped_arguments(**changes)
    with pytest.raises(error, match=words):
        aiter.grouped_topk(**given)
    with pytest.raises(error, match=words):
        aiter.biased_grouped_topk(**given, correction_bias=torch.zeros(given["gating_output"].shape[1]))


def test_what_kernels_with_a_bias_get_wrong_is_found(git_aiter: ModuleType, pypi_aiter: ModuleType):
    bias = torch.zeros(32)
    for package, error in ((git_aiter, SilentlyWrong), (pypi_aiter, Refused)):
        with pytest.raises(error, match="correction_bias torch.bfloat16"):
            package.biased_grouped_topk(**grouped_arguments(), correction_bias=bias.to(BF16))
        for wrong, words in (
            (bias[:8], "correction_bias has shape"),
            (bias.repeat(2)[::2], "correction_bias has strides"),
        ):
            with pytest.raises(SilentlyWrong, match=words):
                package.biased_grouped_topk(**grouped_arguments(), correction_bias=wrong)
    with pytest.raises(SilentlyWrong, match="judged by some of its experts"):
        git_aiter.biased_grouped_topk(**grouped_arguments(groups=4), correction_bias=bias)
    given = grouped_arguments(256, 8, 4, 8, need_renorm=False)
    with pytest.raises(SilentlyWrong, match="drops routed_scaling_factor"):
        git_aiter.biased_grouped_topk(**given, correction_bias=torch.zeros(256), routed_scaling_factor=2.5)


def test_the_fused_gate_adds_shared_experts_at_the_end(aiter: ModuleType):
    gating, bias = torch.randn(ROWS, 32), torch.randn(32)
    weights, ids = results(5)
    returned = aiter.moe_fused_gate(gating, bias, weights, ids, 4, 2, 5, 1, 2.5)
    assert returned[0] is weights
    scores = gating.sigmoid()
    expected, experts = by_groups(scores, scores + bias, 8, 2, 2, 4)
    assert torch.equal(ids[:, :4].long(), experts)
    torch.testing.assert_close(weights[:, :4], expected / expected.sum(-1, keepdim=True))
    assert (ids[:, 4] == 32).all()
    torch.testing.assert_close(weights[:, 4], torch.full((ROWS,), 0.4))


@pytest.mark.parametrize(
    ("experts", "groups", "words"),
    [(48, 8, "power of 2"), (64, 1, "exceeds the maximum"), (64, 3, "divisible by num_expert_group")],
)
def test_the_fused_gate_refuses_and_finds(aiter: ModuleType, experts: int, groups: int, words: str):
    gating, bias = torch.randn(ROWS, experts), torch.randn(experts)
    with pytest.raises(Refused, match=words):
        aiter.moe_fused_gate(gating, bias, *results(4), groups, 1, 4, 0)
    gating, bias = torch.randn(ROWS, 32), torch.randn(32)
    with pytest.raises(Refused, match="input: torch.float64"):
        aiter.moe_fused_gate(gating.double(), bias, *results(4), 8, 1, 4, 0)
    weights, ids = results(4)
    with pytest.raises(Refused, match="topk_ids: torch.int64"):
        aiter.moe_fused_gate(gating, bias, weights, ids.long(), 8, 1, 4, 0)
    with pytest.raises(SilentlyWrong, match="topk_weights has shape"):
        aiter.moe_fused_gate(gating, bias, weights[:, :3], ids, 8, 1, 4, 0)
    for wrong, what in (((gating, bias.half()), "bias is torch.float16"), ((gating.T.contiguous().T, bias), "strides")):
        with pytest.raises(SilentlyWrong, match=what):
            aiter.moe_fused_gate(*wrong, *results(4), 8, 1, 4, 0)


def test_many_rows_must_be_renormalized(aiter: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CU_NUM", "1")
    weights, ids = results(4, 213)
    arguments = (torch.randn(213, 32), torch.randn(32), weights, ids, 8, 3)
    with pytest.raises(AssertionError, match="Renormalization"):
        aiter.biased_grouped_topk(*arguments, False)
    aiter.biased_grouped_topk(*arguments, True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(213))
