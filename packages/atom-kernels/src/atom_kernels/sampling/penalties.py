"""Penalties on tokens that a request has had. Shapes: V tokens of the vocabulary, L tokens of the request."""

from __future__ import annotations

import torch


def penalize(
    logits_V: torch.Tensor,
    history_L: torch.Tensor,
    num_prompt_tokens: int,
    presence_penalty: float,
    frequency_penalty: float,
    repetition_penalty: float,
) -> None:
    """Change one row of logits in place, by the tokens that stand in `history_L`, prompt first.

    A token of the prompt or of the output has its logit divided by the repetition penalty where it is positive, and
    multiplied where it is negative. Then a token of the output loses the presence penalty once, and the frequency
    penalty as often as it stands there. What is without effect (0, and 1 for repetition) is not computed.

    Keskar et al. 2019, "CTRL", https://arxiv.org/abs/1909.05858, for the repetition penalty.

    Args:
        logits_V: float32.
        history_L: int32.
    """
    if repetition_penalty != 1:
        seen = history_L.long().unique()
        values = logits_V[seen]
        logits_V[seen] = torch.where(values > 0, values / repetition_penalty, values * repetition_penalty)
    output = history_L[num_prompt_tokens:]
    if len(output) and (presence_penalty != 0 or frequency_penalty != 0):
        ids, counts = output.long().unique(return_counts=True)
        logits_V[ids] -= frequency_penalty * counts + presence_penalty
