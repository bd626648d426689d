"""`MoriDispatchers`: MORI's dispatch and combine, one operator for all mixtures of a shape."""

from __future__ import annotations

import torch

from atom_kernels.mori.library import Mori, import_mori
from atom_kernels.protocols import UnevenCollectives

Shape = tuple[torch.dtype, int, int, int]
"""What numbers are, how many a row has, how many ids it has, and how many each rank owns."""


class MoriDispatcher:
    """A `RowDispatcher` over one of MORI's operators, whose buffers are of fixed size and overwritten at every call."""

    def __init__(self, mori: Mori, ranks: UnevenCollectives, max_rows: int, shape: Shape) -> None:
        dtype, hidden_size, top_k, self.num_ids = shape
        self._max_rows = max_rows
        self._op = mori.op(
            mori.config(
                data_type=dtype,
                rank=ranks.rank,
                world_size=ranks.size,
                hidden_dim=hidden_size,
                scale_dim=0,
                scale_type_size=0,
                max_token_type_size=dtype.itemsize,
                max_num_inp_token_per_rank=max_rows,
                num_experts_per_rank=self.num_ids,
                num_experts_per_token=top_k,
            )
        )

    def dispatch(
        self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `RowDispatcher`.

        Raises:
            RuntimeError: more rows than MORI's buffers hold of a rank.
        """
        if len(x) > self._max_rows:
            raise RuntimeError(
                f"a step has {len(x)} rows, and MORI's buffers were made for {self._max_rows} of each rank: give "
                "expert_exchange all-to-all, or a larger max_num_batched_tokens"
            )
        taken, weights, _, ids, count = self._op.dispatch(x.contiguous(), weights.contiguous(), None, ids.contiguous())
        num_taken = int(count)
        return taken[:num_taken], weights[:num_taken], ids[:num_taken]

    def combine(self, parts: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """See `RowDispatcher`."""
        found = self._op.combine(parts.contiguous(), None, ids.contiguous())[0]
        return found[: len(ids)].clone()  # the next mixture writes there


class MoriDispatchers:
    """`RowDispatchers` of ranks that join MORI's memory together, each in a process of its own.

    Args:
        ranks: whoever exchanges rows.
        max_rows: the most rows that a step has on one of them.

    Raises:
        MoriUnusableError: MORI is not there, or is not one that we know.
    """

    def __init__(self, ranks: UnevenCollectives, max_rows: int) -> None:
        self._mori, self._ranks, self._max_rows = import_mori(), ranks, max_rows
        self._mori.join(ranks.name)
        self._made: dict[Shape, MoriDispatcher] = {}

    def __call__(self, dtype: torch.dtype, hidden_size: int, top_k: int, num_ids: int) -> MoriDispatcher:
        """See `RowDispatchers`."""
        shape = dtype, hidden_size, top_k, num_ids
        if shape not in self._made:
            self._made[shape] = MoriDispatcher(self._mori, self._ranks, self._max_rows, shape)
        return self._made[shape]
