"""Masks of tokens for the rows of a step, a bit for each of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from atom_core.worker.devices.upload import send

EVERYTHING = -1


def words_of_masks(masks: Sequence[np.ndarray | None], vocab_size: int, device: torch.device) -> torch.Tensor:
    """Int32 ``[n, ceil(vocab_size / 32)]`` on `device`, as `ban_tokens` takes them.

    Args:
        masks: the words of each row; None allows all.
    """
    words = torch.full((len(masks), -(-vocab_size // 32)), EVERYTHING, dtype=torch.int32)
    array = words.numpy()
    for row, mask in enumerate(masks):
        if mask is not None:
            array[row] = mask
    return send(words, device)
