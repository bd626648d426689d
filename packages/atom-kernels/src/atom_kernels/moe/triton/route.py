"""Routing in Triton: one program a token, its scores in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def route_kernel(
    logits_ptr,
    bias_ptr,
    weights_ptr,
    ids_ptr,
    scaling_factor,
    TOP_K: tl.constexpr,
    TOP_K_BLOCK: tl.constexpr,
    SIGMOID: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BY_LOGITS: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUPS_BLOCK: tl.constexpr,
    TOP_GROUPS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    SIZE_BLOCK: tl.constexpr,
    GROUP_BY_TWO: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    """`route`; experts lie as [groups, experts of a group], GS, and without groups as one row."""
    wait_for_inputs(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    groups_G, places_S = tl.arange(0, GROUPS_BLOCK), tl.arange(0, SIZE_BLOCK)
    inside_GS = (groups_G < NUM_GROUPS)[:, None] & (places_S < GROUP_SIZE)[None, :]
    experts_GS = groups_G[:, None] * GROUP_SIZE + places_S[None, :]
    num_experts: tl.constexpr = NUM_GROUPS * GROUP_SIZE
    logits_GS = tl.load(logits_ptr + token * num_experts + experts_GS, mask=inside_GS, other=float("-inf"))
    logits_GS = logits_GS.to(tl.float32)
    if SIGMOID:
        scores_GS = 1.0 / (1.0 + tl.exp(-logits_GS))
    else:
        powers_GS = tl.exp(logits_GS - tl.max(logits_GS))
        scores_GS = powers_GS / tl.sum(powers_GS)
    choice_GS = scores_GS
    if BY_LOGITS:
        choice_GS = logits_GS
    if HAS_BIAS:
        choice_GS += tl.load(bias_ptr + experts_GS, mask=inside_GS, other=0.0)
    keys_GS = tl.where(inside_GS, rank_keys(choice_GS, experts_GS), UNRANKED)
    if TOP_GROUPS < NUM_GROUPS:
        choice_GS = tl.where(inside_GS, choice_GS, float("-inf"))
        best_G = tl.max(choice_GS, axis=1)
        if GROUP_BY_TWO:
            first_G = tl.max(keys_GS, axis=1)
            best_G += tl.max(tl.where(keys_GS == first_G[:, None], float("-inf"), choice_GS), axis=1)
        group_keys_G = tl.where(groups_G < NUM_GROUPS, rank_keys(best_G, groups_G), UNRANKED)
        kept_G = groups_G < 0
        for _ in tl.static_range(TOP_GROUPS):
            best = tl.max(group_keys_G)
            kept_G = kept_G | (group_keys_G == best)
            group_keys_G = tl.where(group_keys_G == best, UNRANKED, group_keys_G)
        keys_GS = tl.where(kept_G[:, None], keys_GS, UNRANKED)
    slots_K = tl.arange(0, TOP_K_BLOCK)
    weights_K = tl.zeros([TOP_K_BLOCK], tl.float32)
    ids_K = tl.zeros([TOP_K_BLOCK], tl.int32)
    for slot in tl.static_range(TOP_K):
        chosen_GS = keys_GS == tl.max(keys_GS)
        weights_K = tl.where(slots_K == slot, tl.sum(tl.where(chosen_GS, scores_GS, 0.0)), weights_K)
        ids_K = tl.where(slots_K == slot, tl.sum(tl.where(chosen_GS, experts_GS, 0)), ids_K)
        keys_GS = tl.where(chosen_GS, UNRANKED, keys_GS)
    if RENORMALIZE:
        weights_K = weights_K / (tl.sum(weights_K) + 1e-20)
    out = token * TOP_K + slots_K
    tl.store(weights_ptr + out, weights_K * scaling_factor, mask=slots_K < TOP_K)
    tl.store(ids_ptr + out, ids_K, mask=slots_K < TOP_K)


# Below every key.
UNRANKED: tl.constexpr = tl.constexpr(-(2**63))


@triton.jit
def rank_keys(scores, indices):
    """int64 that sort as the scores do, and among equals the lower index higher; NaN is the least score."""
    scores = tl.where(scores == scores, scores, float("-inf"))
    # Adding zero makes -0.0 the 0.0 that it equals.
    bits = (scores + 0.0).to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    return ordered * 65536 - indices
