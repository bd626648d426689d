"""Masks of tokens, a bit for each of the vocabulary, applied to logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from atom_kernels.launch import launch

BLOCK = 4096
# What a logit may be at most, for each bit of each byte, the lowest first.
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little").view(np.bool_)
_CEILINGS = np.where(_BITS, np.float32(np.inf), np.float32(-np.inf))


def ban_tokens(logits_nV: torch.Tensor, masks: Sequence[np.ndarray | None]) -> None:
    """Set logits to -inf, in place, where the mask of a row does not allow the token; None allows all.

    Args:
        logits_nV: float32.
        masks: for each row int32 ``[ceil(V / 32)]``; bit ``i % 32`` of word ``i // 32`` allows token i.
    """
    num_words = -(-logits_nV.shape[1] // 32)
    if logits_nV.device.type == "cpu":
        # One for all rows: it stays in the cache, and its memory is touched for the first time once.
        ceilings = np.empty((4 * num_words, 8), dtype=np.float32)
        for logits_V, words in zip(logits_nV, masks, strict=True):
            if words is not None:
                _lower(logits_V, words, ceilings)
        return
    words = torch.full((len(masks), num_words), -1, dtype=torch.int32, pin_memory=True)
    for row, mask in enumerate(masks):
        if mask is not None:
            words.numpy()[row] = mask
    ban_by_triton(logits_nV, words.to(logits_nV.device, non_blocking=True))


def _lower(logits_V: torch.Tensor, words: np.ndarray, ceilings: np.ndarray) -> None:
    """The least of each logit and what its bit allows, without branches: a fill by mask takes 15 times as long."""
    np.take(_CEILINGS, words.view(np.uint8), axis=0, out=ceilings, mode="clip")  # other modes copy once more
    torch.minimum(logits_V, torch.from_numpy(ceilings.reshape(-1)[: len(logits_V)]), out=logits_V)


def ban_by_triton(logits_nV: torch.Tensor, words: torch.Tensor) -> None:
    """`ban_tokens` with the masks of all rows, int32 ``[n, ceil(V / 32)]``, on the device of the logits."""
    from atom_core.worker.sampling.triton_masks import ban_kernel

    kernel: Any = ban_kernel
    num_rows, vocab_size = logits_nV.shape
    launch(
        kernel, (num_rows, -(-vocab_size // BLOCK)), logits_nV, logits_nV.stride(0), words, words.stride(0),
        vocab_size, BLOCK=BLOCK,
    )  # fmt: skip
