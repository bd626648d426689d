"""Masks of tokens for the rows of a step, a bit for each of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

EVERYTHING = -1


def words_of_masks(masks: Sequence[np.ndarray | None], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Int32 ``[n, ceil(vocab_size / 32)]`` on `device`, as `ban_tokens` takes them.

    Args:
        masks: the words of each row; None allows all.
    """
    is_on_host = device.type == "cpu"
    words = torch.full((len(masks), -(-vocab_size // 32)), EVERYTHING, dtype=torch.int32, pin_memory=not is_on_host)
    array = words.numpy()
    for row, mask in enumerate(masks):
        if mask is not None:
            array[row] = mask
    return words if is_on_host else words.to(device, non_blocking=True)
