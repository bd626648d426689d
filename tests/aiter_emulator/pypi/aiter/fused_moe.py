"""Experts."""

from tests.aiter_emulator.semantics import experts, quantized_experts
from tests.aiter_emulator.semantics.binding import emulated

from .ops.enum import ActivationType, QuantType

BLOCK_SIZE_M = 32


@emulated
def moe_sorting(
    topk_ids,
    topk_weights,
    num_experts,
    model_dim,
    moebuf_dtype,
    block_size=BLOCK_SIZE_M,
    expert_mask=None,
    num_local_tokens=None,
    dispatch_policy=0,
):
    return experts.moe_sorting(
        topk_ids, topk_weights, num_experts, model_dim, moebuf_dtype, block_size, expert_mask, num_local_tokens
    )


@emulated
def fused_moe(
    hidden_states,
    w1,
    w2,
    topk_weight,
    topk_ids,
    expert_mask=None,
    activation=ActivationType.Silu,
    quant_type=QuantType.No,
    doweight_stage1=False,
    w1_scale=None,
    w2_scale=None,
    a1_scale=None,
    a2_scale=None,
    block_size_M=None,
    num_local_tokens=None,
    moe_sorting_dispatch_policy=0,
    dtype=None,
    hidden_pad=0,
    intermediate_pad=0,
    bias1=None,
    bias2=None,
):
    if quant_type.value:
        return quantized_experts.fused_moe(
            hidden_states,
            w1,
            w2,
            (topk_weight, topk_ids, expert_mask),
            activation.value,
            quant_type.value,
            w1_scale,
            w2_scale,
            {
                "doweight_stage1": doweight_stage1,
                "a1_scale": a1_scale,
                "a2_scale": a2_scale,
                "block_size_M": block_size_M,
                "num_local_tokens": num_local_tokens,
                "dtype": dtype,
                "hidden_pad": hidden_pad,
                "intermediate_pad": intermediate_pad,
                "bias1": bias1,
                "bias2": bias2,
            },
            reads_attribute=False,
        )
    return experts.fused_moe(
        hidden_states,
        w1,
        w2,
        topk_weight,
        topk_ids,
        expert_mask,
        activation.value,
        quant_type.value,
        doweight_stage1,
        block_size_M,
        num_local_tokens,
        dtype,
        {
            "w1_scale": w1_scale,
            "w2_scale": w2_scale,
            "bias1": bias1,
            "bias2": bias2,
        },
        reads_attribute=False,
        narrow_tiles=False,
    )


@emulated
def torch_moe(
    hidden_states,
    w1,
    w2,
    topk_weight,
    topk_ids,
    fc1_scale=None,
    fc2_scale=None,
    fc1_smooth_scale=None,
    fc2_smooth_scale=None,
    expert_mask=None,
    activation=ActivationType.Silu,
):
    scales = (fc1_scale, fc2_scale, fc1_smooth_scale, fc2_smooth_scale)
    return experts.torch_moe(hidden_states, w1, w2, topk_weight, topk_ids, scales, expert_mask, activation.value)
