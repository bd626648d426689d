"""What the host has made for a step, on its way to the device: in one copy that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def upload(device: torch.device, *arrays: np.ndarray) -> Sequence[torch.Tensor]:
    """Int64 tensors of one dimension, with what the arrays have."""
    together = torch.from_numpy(np.concatenate(arrays).astype(np.int64, copy=False))
    return send(together, device).split([len(array) for array in arrays])


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor on the device; a GPU takes it from pinned memory, beside what it computes."""
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)
