"""`Adapter`: the matrices of one adapter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LowRank:
    """What one linear gets: ``y += (x @ a.T) @ b.T``.

    Attributes:
        a: ``[rank, in_features]``.
        b: ``[out_features, rank]``, the scaling in it.
    """

    a: torch.Tensor
    b: torch.Tensor


@dataclass(frozen=True)
class Adapter:
    """What an adapter adds to linears, by their names in the checkpoint: float32, on the host."""

    matrices: Mapping[str, LowRank]
