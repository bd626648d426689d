"""fused_moe, moe_sorting and torch_moe, for experts in 16 bits."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check_contiguous, check_dtype, check_shape, detect_unless, refuse_unless
from .host import ints, true_everywhere
from .shuffle import require_shuffled, unshuffled

SILU, GELU = 0, 1
ACTIVATIONS: dict[int, Callable[[Tensor], Tensor]] = {SILU: F.silu, GELU: F.gelu}


def fused_moe(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weight: Tensor,
    topk_ids: Tensor,
    expert_mask: Tensor | None,
    activation: int,
    quant_type: int,
    doweight_stage1: bool,
    block_size_M: int | None,
    num_local_tokens: Tensor | None,
    dtype: torch.dtype | None,
    ignored: dict[str, object],
    *,
    reads_attribute: bool,
    narrow_tiles: bool,
) -> Tensor:
    """A new ``[tokens, hidden]``: each token's experts, weighted and summed.

    Args:
        w1: ``[experts, 2 * inter, hidden]``, rows of the gate before the others; or ``[experts, inter, hidden]``.
        w2: ``[experts, hidden, inter]``; both shuffled with (16, 16).
        expert_mask: int32, 1 for experts that are here, over all ids that may come; w1 and w2 have those only.
        ignored: arguments that this path of AITER never looks at, by name.
        reads_attribute: whether this release looks at `is_shuffled` to choose a kernel.
        narrow_tiles: whether this release has tiles of 64 for narrow experts.
    """
    if quant_type != 0:
        raise NotImplementedError("the emulator has fused_moe for QuantType.No")
    num_tokens, hidden = hidden_states.shape
    num_experts, inter = w2.shape[0], w2.shape[2]
    assert w1.shape[1] in (inter, inter * 2), f"Invalid MoE weight: {w1.shape=} {w2.shape=}"
    dtype = hidden_states.dtype if dtype is None else dtype
    assert dtype in (torch.float16, torch.bfloat16), f"Fused_moe unsupported out dtype: {dtype}"
    for name, value in ignored.items():
        given = isinstance(value, Tensor) or value not in (None, 0)
        detect_unless(not given, f"{name} has no effect without quantization")
    detect_unless(activation in ACTIVATIONS, f"activation {activation} has no 16-bit kernel: another is computed")
    check_shape("w1", w1, num_experts, None, hidden)
    check_shape("w2", w2, None, hidden, None)
    for name, tensor in {"w1": w1, "w2": w2}.items():
        detect_unless(tensor.dtype == hidden_states.dtype, f"{name} is {tensor.dtype}, read as {hidden_states.dtype}")
        require_shuffled(name, tensor)
        marked = getattr(tensor, "is_shuffled", False)
        detect_unless(marked or not reads_attribute, f"{name} lost is_shuffled: it is read in the plain order")
    width = 64 if narrow_tiles and inter <= 192 else 128
    fits = hidden % 128 == 0 and inter % width == 0
    refuse_unless(fits, f"device_gemm does not support this GEMM problem: hidden {hidden}, inter {inter}")
    check_contiguous("hidden_states", hidden_states)
    refuse_unless(block_size_M in (None, 32, 64, 128), f"no kernel for block_size_M {block_size_M}")
    local = local_experts(topk_ids, topk_weight, num_experts, expert_mask, num_tokens)
    result = _experts(hidden_states, unshuffled(w1), unshuffled(w2), topk_weight, local, activation, doweight_stage1)
    if num_local_tokens is not None:
        check_dtype("num_local_tokens", num_local_tokens, torch.int32)
        result[ints(num_local_tokens.reshape(-1))[0] :] = float("nan")
    return result.to(dtype)


def local_experts(ids: Tensor, weights: Tensor, num_experts: int, mask: Tensor | None, num_tokens: int) -> Tensor:
    """The row of w1 of each choice, -1 for experts of other ranks."""
    refuse_unless(weights.dtype == torch.float32, "topk_weights must be FP32 (float32)")
    check_dtype("topk_ids", ids, torch.int32)
    check_shape("topk_ids", ids, num_tokens, None)
    check_shape("topk_weights", weights, *ids.shape)
    check_contiguous("topk_ids", ids)
    check_contiguous("topk_weights", weights)
    known = num_experts if mask is None else mask.numel()
    inside = true_everywhere((ids >= 0) & (ids < known))
    detect_unless(inside, f"topk_ids has ids outside of {known} experts")
    if mask is None:
        return ids.long()
    check_dtype("expert_mask", mask, torch.int32)
    check_contiguous("expert_mask", mask)
    detect_unless(true_everywhere((mask == 0) | (mask == 1)), "expert_mask has other numbers than 0 and 1")
    here = sum(ints(mask))
    detect_unless(here == num_experts, f"expert_mask names {here} experts, the weights are of {num_experts}")
    rows = torch.where(mask == 1, mask.cumsum(0) - 1, -1)
    return rows[ids.long()]


def _experts(
    x: Tensor, w1: Tensor, w2: Tensor, weights: Tensor, local: Tensor, activation: int, weigh_first: bool
) -> Tensor:
    """float32 ``[tokens, hidden]``."""
    inter, act = w2.shape[2], ACTIVATIONS[activation]
    result = torch.zeros(x.shape, dtype=torch.float32)
    for expert in range(w1.shape[0]):
        tokens, slots = torch.nonzero(local == expert, as_tuple=True)
        if tokens.numel() == 0:
            continue
        weight = weights[tokens, slots][:, None]
        first = x[tokens].float() @ w1[expert].float().T
        first = first * weight if weigh_first else first
        between = act(first[:, :inter]) * first[:, inter:] if first.shape[1] == 2 * inter else act(first)
        second = between @ w2[expert].float().T
        result.index_add_(0, tokens, second if weigh_first else second * weight)
    return result


def moe_sorting(
    topk_ids: Tensor,
    topk_weights: Tensor,
    num_experts: int,
    model_dim: int,
    moebuf_dtype: torch.dtype,
    block_size: int,
    expert_mask: Tensor | None,
    num_local_tokens: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """sorted ids, their weights, experts of blocks, ``[padded length, tokens]`` and a zeroed ``[tokens, model_dim]``.

    An id is ``slot << 24 | token``; each expert's ids fill blocks up with ``topk << 24 | tokens``.
    """
    num_tokens, topk = topk_ids.shape
    here = num_experts if expert_mask is None else sum(ints(expert_mask))
    local = local_experts(topk_ids, topk_weights, here, expert_mask, num_tokens)
    valid = num_tokens if num_local_tokens is None else ints(num_local_tokens.reshape(-1))[0]
    room = topk_ids.numel() + num_experts * block_size - topk
    ids = torch.full((room,), topk << 24 | num_tokens, dtype=torch.int32)
    weights = torch.zeros(room)
    experts = torch.full((-(-room // block_size),), -1, dtype=torch.int32)
    used = 0
    for expert in range(here):
        tokens, slots = torch.nonzero(local[:valid] == expert, as_tuple=True)
        if tokens.numel() == 0:
            continue
        ids[used : used + tokens.numel()] = (slots << 24 | tokens).to(torch.int32)
        weights[used : used + tokens.numel()] = topk_weights[tokens, slots]
        blocks = -(-tokens.numel() // block_size)
        experts[used // block_size : used // block_size + blocks] = expert
        used += blocks * block_size
    counts = torch.tensor([used, valid], dtype=torch.int32)
    return ids, weights, experts, counts, torch.zeros(num_tokens, model_dim, dtype=moebuf_dtype)


def torch_moe(
    hidden_states: Tensor,
    w1: Tensor,
    w2: Tensor,
    topk_weight: Tensor,
    topk_ids: Tensor,
    scales: tuple[Tensor | None, ...],
    expert_mask: Tensor | None,
    activation: int,
) -> Tensor:
    """AITER's own reference: weights in the plain order, in float32; ``scales`` of fc1, fc2 and their inputs."""
    fc1, fc2, smooth1, smooth2 = scales
    if smooth1 is not None or smooth2 is not None:
        raise NotImplementedError("the emulator's torch_moe has no smooth scales")
    if fc1 is not None and fc2 is not None:
        w1 = w1.float() * fc1.reshape(w1.shape[0], -1, 1)
        w2 = w2.float() * fc2.reshape(w2.shape[0], -1, 1)
    local = topk_ids.long()
    if expert_mask is not None:
        local = torch.where(expert_mask == 0, -1, expert_mask.cumsum(0) - 1)[local]
    return _experts(hidden_states, w1, w2, topk_weight, local, activation, False).to(hidden_states.dtype)
