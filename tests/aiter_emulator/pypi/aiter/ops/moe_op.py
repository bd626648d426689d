"""Routing by softmax and by sigmoid."""

from torch import Tensor

from tests.aiter_emulator.semantics import routing

from ..jit.core import compile_ops


@compile_ops("module_moe_asm")
def topk_softmax(
    topk_weights: Tensor,
    topk_indices: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    need_renorm: bool,
) -> None:
    routing.topk_softmax(topk_weights, topk_indices, token_expert_indices, gating_output, need_renorm)


@compile_ops("module_moe_topk_ck")
def topk_sigmoid(topk_weights: Tensor, topk_indices: Tensor, gating_output: Tensor) -> None:
    routing.topk_sigmoid(topk_weights, topk_indices, gating_output)
