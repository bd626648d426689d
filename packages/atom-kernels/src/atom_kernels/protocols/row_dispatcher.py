"""`RowDispatcher`: a library that sends rows to the ranks that own their experts, and brings back what these made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class RowDispatcher(Protocol):
    """One mixture's way to the owners of experts; all ranks call it in the same order, with rows or without.

    Attributes:
        num_ids: every rank owns so many ids, in the order of the ranks.
    """

    num_ids: int

    def dispatch(
        self, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Each row goes to the owners of its ids, once to each, with all of its weights and ids.

        Args:
            x: ``[T, D]``.
            weights: float32 ``[T, K]``.
            ids: int32 ``[T, K]``.

        Returns what came, ``[N, D]``, ``[N, K]`` and ``[N, K]``, in any order; it stays until the next call.
        """
        ...

    def combine(self, parts: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Each row's parts ``[N, D]`` of the ranks that had it, in the order in which rows came, summed: ``[T, D]``.

        Args:
            ids: what was dispatched.
        """
        ...


class RowDispatchers(Protocol):
    """Makes dispatchers; all ranks ask for the same ones, in the same order."""

    def __call__(self, dtype: torch.dtype, hidden_size: int, top_k: int, num_ids: int) -> RowDispatcher:
        """The dispatcher of mixtures whose ranks own `num_ids` ids each."""
        ...
