"""fused_moe of experts in int4 with a scale for each 32 inputs, whose rows stay bfloat16; and its weights' order."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check_contiguous, check_dtype, check_shape, detect_unless, refuse_unless
from .experts import local_experts
from .shuffle import require_shuffled, unshuffled

GROUP, TILE = 32, 256


def pack(shuffled: Tensor) -> Tensor:
    """int8 ``[...]`` -> flat bytes: of each eight numbers the fifth lies above the first, and so on."""
    detect_unless(shuffled.dtype == torch.int8, f"numbers are int8, not {shuffled.dtype}")
    assert shuffled.numel() % 8 == 0, "whole eights"
    low, high = (shuffled.contiguous().view(-1, 2, 4) & 15).to(torch.uint8).unbind(1)
    return (low | high << 4).reshape(-1).view(torch.int8)


def unpacked(codes: Tensor) -> Tensor:
    """Bytes ``[E, N, K / 2]`` -> int8 ``[E, N, K]``, still shuffled."""
    fours = codes.view(torch.uint8).unflatten(-1, (-1, 4))
    nibbles = torch.stack((fours & 15, fours >> 4), dim=-2).flatten(-3)
    return ((nibbles.to(torch.int16) ^ 8) - 8).to(torch.int8)


def order_scales(scale: Tensor, group_size: int) -> Tensor:
    """``[E, G, N]`` -> ``[E, G / 2, N, 2]`` in bfloat16, and as it is in float32."""
    if group_size != GROUP:
        raise ValueError(f"shuffle_scale_for_int4 only supports group_size=32, got {group_size}.")
    if scale.dtype != torch.bfloat16:
        return scale.contiguous()
    experts, groups, rows = scale.shape
    return scale.view(experts, groups // 2, 2, rows).permute(0, 1, 3, 2).contiguous()


def fused_moe(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    routed: tuple[Tensor, Tensor, Tensor | None],
    w1_scale: Tensor | None,
    w2_scale: Tensor | None,
) -> Tensor:
    """A new ``[tokens, hidden]``, with weights in float32 and what lies between the products in bfloat16."""
    weights, ids, mask = routed
    (num_tokens, hidden), num_experts, inter = hidden_states.shape, w2.shape[0], w2.shape[2] * 2
    assert w1.shape[1] == inter * 2, f"Invalid MoE weight: {w1.shape=} {w2.shape=}"
    detect_unless(hidden_states.dtype == torch.bfloat16, "kernels of int4 read rows in bf16")
    check_contiguous("hidden_states", hidden_states)
    check_shape("w1", w1, num_experts, None, hidden // 2)
    check_shape("w2", w2, None, hidden, None)
    refuse_unless(hidden % TILE == 0 and inter % TILE == 0, f"no kernel for hidden {hidden}, inter {inter}")
    first, second = _numbers("w1", w1, w1_scale), _numbers("w2", w2, w2_scale)
    local = local_experts(ids, weights, num_experts, mask, num_tokens)
    rows, result = hidden_states.float(), torch.zeros(num_tokens, hidden)
    for expert in range(num_experts):
        tokens, slots = torch.nonzero(local == expert, as_tuple=True)
        if tokens.numel():
            gate, up = (rows[tokens] @ first[expert].t()).split(inter, dim=1)
            between = (F.silu(gate) * up).to(torch.bfloat16).float()
            result.index_add_(0, tokens, between @ second[expert].t() * weights[tokens, slots][:, None])
    return result.to(torch.bfloat16)


def _numbers(name: str, codes: Tensor, scale: Tensor | None) -> Tensor:
    """All weights in float32, in the plain order."""
    assert scale is not None, f"{name}_scale is missing"
    check_contiguous(name, codes)
    detect_unless(getattr(codes, "is_shuffled", False), f"{name} lost is_shuffled: it is read in the plain order")
    shuffled = unpacked(codes)
    require_shuffled(name, shuffled)
    (num_experts, rows, columns), groups = shuffled.shape, shuffled.shape[2] // GROUP
    check_dtype(f"{name}_scale", scale, torch.bfloat16)
    check_contiguous(f"{name}_scale", scale)
    detect_unless(scale.numel() == num_experts * rows * groups, f"{name}_scale has {scale.numel()} scales")
    scales = scale.view(num_experts, groups // 2, rows, 2).permute(0, 2, 1, 3).reshape(num_experts, rows, groups)
    return (
        unshuffled(shuffled)
        .float()
        .view(num_experts, rows, groups, GROUP)
        .mul(scales.float()[..., None])
        .view(num_experts, rows, columns)
    )
