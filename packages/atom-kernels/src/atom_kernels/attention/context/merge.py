"""What ranks found in their parts of a context becomes what is found in the whole.

Shapes: N ranks, T tokens, H heads of all ranks, C kv_lora_rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom_kernels.protocols import Collectives


def merge_parts(found_THX: torch.Tensor, ranks: Collectives) -> torch.Tensor:
    """float32 ``[T, H / N, C]`` of the rank's own heads.

    Args:
        found_THX: float32 ``[T, H, C + 1]``, what this rank found, and behind it the log-sum-exp of its scores.
        ranks: the ranks that found the rest.
    """
    lse_NTH = ranks.all_gather(found_THX[..., -1].unsqueeze(0), 0)
    part_THC = found_THX[..., :-1] * share_of(lse_NTH, ranks.rank).unsqueeze(-1)
    own = found_THX.shape[1] // ranks.size
    return ranks.all_reduce(part_THC)[:, ranks.rank * own : (ranks.rank + 1) * own]


def share_of(lse_NTH: torch.Tensor, rank: int) -> torch.Tensor:
    """``[T, H]``, the share of one rank in the sum of all exponentials; 0 for a token that no rank has keys of."""
    return (lse_NTH[rank] - torch.logsumexp(lse_NTH, 0)).exp().nan_to_num(0.0)
