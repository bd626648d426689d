"""`upload`: small numbers of a step to the device, in one copy that nobody waits for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def upload(device: torch.device, *arrays: np.ndarray) -> Sequence[torch.Tensor]:
    """Int64 tensors of one dimension, with what the arrays have."""
    together = torch.from_numpy(np.concatenate(arrays).astype(np.int64, copy=False))
    if device.type == "cuda":
        together = together.pin_memory()
    return together.to(device, non_blocking=True).split([len(array) for array in arrays])
