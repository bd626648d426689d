"""Log probabilities of chosen tokens, their ranks, and the best beside them. Shapes: B rows, V vocabulary, N best."""

from __future__ import annotations

from typing import NamedTuple

import torch


class TokenLogprobs(NamedTuple):
    """Log probabilities of one token a row.

    Attributes:
        chosen_B: float32, of the chosen token.
        rank_B: int64, 1 for the most likely: one more than the number of tokens that are more likely.
        top_logprobs_BN, top_ids_BN: float32 and int64, the N most likely tokens in falling order.
    """

    chosen_B: torch.Tensor
    rank_B: torch.Tensor
    top_logprobs_BN: torch.Tensor
    top_ids_BN: torch.Tensor


def token_logprobs(logits_BV: torch.Tensor, token_ids_B: torch.Tensor, num_top: int) -> TokenLogprobs:
    """Log probabilities under the softmax of `logits_BV`, in float32; a row depends on no other row.

    Args:
        logits_BV: any float dtype.
        token_ids_B: int64, the chosen tokens.
        num_top: how many of the best tokens to give, 0 to V.
    """
    logprobs_BV = torch.log_softmax(logits_BV.float(), dim=-1)
    chosen_B1 = logprobs_BV.gather(1, token_ids_B.long()[:, None])
    rank_B = (logprobs_BV > chosen_B1).sum(dim=-1) + 1
    top = torch.topk(logprobs_BV, num_top, dim=-1)
    return TokenLogprobs(chosen_B1.squeeze(1), rank_B, top.values, top.indices)
