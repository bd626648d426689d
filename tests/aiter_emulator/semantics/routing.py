"""Which experts a token goes to, and with what weight: six functions over one choice of the largest scores."""

from __future__ import annotations

import torch
from torch import Tensor

from . import machine
from .checks import check_contiguous, check_dtype, check_rows, check_shape, detect_unless, refuse_dtype, refuse_unless

GATING = (torch.float16, torch.bfloat16, torch.float32)
WARP = 64
ROWS_PER_UNIT = 212
LARGEST_FUSED_GROUP = 32


def topk_softmax(
    weights: Tensor,
    ids: Tensor,
    token_expert_indices: Tensor,
    gating: Tensor,
    need_renorm: bool,
    num_shared: int = 0,
    shared_scoring: str = "",
) -> None:
    """Softmax over all experts, then the k largest. Columns of shared experts come last, each with its own sigmoid."""
    refuse_dtype("gating_output", gating, *GATING)
    check_contiguous("gating_output", gating)
    num_tokens, num_experts = gating.shape[0], gating.shape[1] - num_shared
    topk = weights.shape[1] - num_shared
    _check_results(weights, ids, num_tokens, topk + num_shared)
    check_shape("token_expert_indices", token_expert_indices, num_tokens, None)
    check_dtype("token_expert_indices", token_expert_indices, torch.int32)
    check_contiguous("token_expert_indices", token_expert_indices)
    detect_unless(
        token_expert_indices.shape[1] >= topk, f"token_expert_indices has {token_expert_indices.shape[1]} columns"
    )
    detect_unless(0 < topk <= num_experts, f"{topk} of {num_experts} experts")
    if num_experts & (num_experts - 1) or num_experts > 512:
        for name, tensor in {"topk_weights": weights, "topk_indices": ids}.items():
            detect_unless(tensor.is_contiguous(), f"{num_experts} experts: the kernel takes {name} as contiguous")
    scores = torch.softmax(gating[:, :num_experts].float(), dim=-1)
    chosen, experts = _largest(scores, topk)
    chosen = chosen / chosen.sum(-1, keepdim=True) if need_renorm else chosen
    weights[:, :topk], ids[:, :topk] = chosen, experts.to(torch.int32)
    rows = torch.arange(num_tokens)[:, None] + torch.arange(topk) * num_tokens
    token_expert_indices[:, :topk] = rows.to(torch.int32)
    if num_shared:
        refuse_unless(shared_scoring == "sigmoid", f"shared experts are scored with sigmoid, not {shared_scoring!r}")
        weights[:, topk:] = gating[:, num_experts:].float().sigmoid()
        ids[:, topk:] = torch.arange(num_experts, num_experts + num_shared, dtype=torch.int32)


def topk_sigmoid(weights: Tensor, ids: Tensor, gating: Tensor) -> None:
    """The k largest, each with its sigmoid (Llama 4)."""
    refuse_dtype("gating_output", gating, *GATING)
    refuse_dtype("topk_weights", weights, *GATING)
    check_dtype("topk_indices", ids, torch.int32)
    check_shape("topk_weights", weights, gating.shape[0], None)
    check_shape("topk_indices", ids, *weights.shape)
    for name, tensor in {"topk_weights": weights, "topk_indices": ids, "gating_output": gating}.items():
        check_contiguous(name, tensor)
    chosen, experts = _largest(gating.float().sigmoid(), weights.shape[1])
    weights.copy_(chosen)
    ids.copy_(experts)


def grouped_topk(
    gating: Tensor,
    weights: Tensor,
    ids: Tensor,
    num_groups: int,
    topk_groups: int,
    need_renorm: bool,
    is_softmax: bool,
    factor: float,
) -> None:
    """Groups are as good as their best expert; experts of the best groups compete."""
    _check_grouped(gating, weights, ids, num_groups, topk_groups)
    scores = torch.softmax(gating.float(), -1) if is_softmax else gating.float().sigmoid()
    best = scores.unflatten(1, (num_groups, -1)).amax(-1)
    _write_grouped(scores, scores, best, weights, ids, topk_groups, need_renorm, factor)


def biased_grouped_topk(
    gating: Tensor,
    bias: Tensor,
    weights: Tensor,
    ids: Tensor,
    num_groups: int,
    topk_groups: int,
    need_renorm: bool,
    factor: float,
) -> None:
    """DeepSeek-V3: sigmoids with a bias choose, two of a group count for it; weights are sigmoids without the bias."""
    git, each = machine.release() == "git", gating.shape[1] // num_groups
    if gating.shape[0] > machine.cu_num() * ROWS_PER_UNIT and not (git and each > LARGEST_FUSED_GROUP):
        assert need_renorm, "Renormalization is required for moe_fused_gate."
        moe_fused_gate(gating, bias, weights, ids, num_groups, topk_groups, ids.shape[1], 0, factor)
        return
    _check_grouped(gating, weights, ids, num_groups, topk_groups)
    (detect_unless if git else refuse_unless)(
        gating.dtype == bias.dtype, f"gating_output is {gating.dtype}, correction_bias {bias.dtype}"
    )
    check_shape("correction_bias", bias, gating.shape[1])
    check_contiguous("correction_bias", bias)
    # With lanes of a group that do not exchange their best two, only the first lane's experts are looked at.
    whole = num_groups in (1, 8) or topk_groups == num_groups or each <= _vector(gating.shape[1])
    detect_unless(whole, f"{num_groups} groups of {each}: a group is judged by some of its experts")
    sorts = (gating.shape[1], num_groups, topk_groups, ids.shape[1]) == (256, 8, 4, 8)
    detect_unless(need_renorm or factor == 1.0 or not sorts, "the kernel for 256 experts drops routed_scaling_factor")
    scores = gating.float().sigmoid()
    biased = scores + bias.float()
    best = biased.unflatten(1, (num_groups, -1)).topk(min(2, each), dim=-1).values.sum(-1)
    _write_grouped(scores, biased, best, weights, ids, topk_groups, need_renorm, factor)


def moe_fused_gate(
    gating: Tensor,
    bias: Tensor,
    weights: Tensor,
    ids: Tensor,
    num_groups: int,
    topk_groups: int,
    topk: int,
    num_shared: int,
    factor: float,
) -> tuple[Tensor, Tensor]:
    """The same choice for many rows; renormalized always, and the factor counts for shared experts only."""
    num_experts = gating.shape[1]
    refuse_dtype("input", gating, *GATING)
    refuse_unless(num_experts & (num_experts - 1) == 0, f"num_experts must be a power of 2, but got {num_experts}")
    refuse_unless(num_experts % num_groups == 0, "num_experts must be divisible by num_expert_group")
    refuse_unless(
        num_experts // num_groups <= LARGEST_FUSED_GROUP, "Per group experts exceeds the maximum supported (32)"
    )
    _check_results(weights, ids, gating.shape[0], topk)
    detect_unless(bias.dtype == gating.dtype, f"bias is {bias.dtype}, read as {gating.dtype}")
    check_contiguous("input", gating)
    scores = gating.float().sigmoid()
    biased = scores + bias.float()
    best = biased.unflatten(1, (num_groups, -1)).topk(2, dim=-1).values.sum(-1)
    routed = topk - num_shared
    _write_grouped(scores, biased, best, weights[:, :routed], ids[:, :routed], topk_groups, True, 1.0)
    if num_shared:
        offsets = (torch.arange(gating.shape[0])[:, None] % num_shared + torch.arange(num_shared)).to(torch.int32)
        ids[:, routed:], weights[:, routed:] = num_experts + offsets, 1.0 / factor
    return weights, ids


def _check_grouped(gating: Tensor, weights: Tensor, ids: Tensor, num_groups: int, topk_groups: int) -> None:
    num_experts = gating.shape[1]
    refuse_dtype("gating_output", gating, *GATING)
    refuse_unless(num_groups in (1, 2, 4, 8), f"Unsupported num_expert_group: {num_groups}")
    refuse_unless(weights.stride(0) == ids.stride(0), "topk_ids.stride(0) == topk_weights.stride(0)")
    check_contiguous("gating_output", gating)
    _check_results(weights, ids, gating.shape[0], ids.shape[1])
    detect_unless(num_experts % num_groups == 0, f"{num_experts} experts in {num_groups} groups")
    each = num_experts // num_groups
    detect_unless(each % _vector(num_experts) == 0, f"groups of {each} experts: a vector of scores spans two of them")
    detect_unless(0 < topk_groups <= num_groups, f"{topk_groups} of {num_groups} groups")
    detect_unless(ids.shape[1] <= min(WARP, topk_groups * each), f"{ids.shape[1]} of {topk_groups * each} experts")


def _check_results(weights: Tensor, ids: Tensor, num_tokens: int, topk: int) -> None:
    """float32 weights and int32 ids; rows may be further apart than they are long."""
    for name, tensor, dtype in (("topk_weights", weights, torch.float32), ("topk_ids", ids, torch.int32)):
        refuse_dtype(name, tensor, dtype)
        check_shape(name, tensor, num_tokens, topk)
        check_rows(name, tensor)


def _vector(num_experts: int) -> int:
    return {0: 4, 2: 2}.get(num_experts % 4, 1)


def _largest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Equal scores go to the lower index."""
    order = torch.sort(scores, dim=-1, descending=True, stable=True)
    return order.values[:, :count], order.indices[:, :count]


def _write_grouped(
    scores: Tensor,
    judged: Tensor,
    best: Tensor,
    weights: Tensor,
    ids: Tensor,
    topk_groups: int,
    need_renorm: bool,
    factor: float,
) -> None:
    groups = torch.zeros_like(best, dtype=torch.bool).scatter(1, _largest(best, topk_groups)[1], True)
    allowed = groups.repeat_interleave(scores.shape[1] // best.shape[1], dim=1)
    _, experts = _largest(judged.masked_fill(~allowed, float("-inf")), ids.shape[1])
    chosen = scores.gather(1, experts)
    chosen = chosen / chosen.sum(-1, keepdim=True) if need_renorm else chosen
    weights.copy_(chosen * factor)
    ids.copy_(experts)
