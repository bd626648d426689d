"""What low-rank adapters add to the outputs of a linear, in plain torch.

T: tokens, I: inputs, O: outputs, N: places of adapters, P: parts of the linear, r: rank, R = P * r.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch

from atom_kernels.adapters.matrices_in_c import MatricesInC
from atom_kernels.dtypes import unplanned


@dataclass(frozen=True)
class LowRankProblem:
    """Attributes:
    in_features: I.
    parts: outputs of each linear of the checkpoint that the linear is made of; their sum is O.
    rank: r; matrices of a smaller rank are filled up with zeros.
    num_places: N.
    dtype: the dtype of inputs and matrices; outputs have it, too, or are float32.
    """

    in_features: int
    parts: tuple[int, ...]
    rank: int
    num_places: int
    dtype: torch.dtype

    @property
    def out_features(self) -> int:
        """O."""
        return sum(self.parts)

    @property
    def num_rows_of_a(self) -> int:
        """R."""
        return len(self.parts) * self.rank

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """The first output of each part, and the one behind its last."""
        return tuple(pairwise(accumulate(self.parts, initial=0)))

    def check_inputs(self, y: torch.Tensor, x: torch.Tensor) -> None:
        """Raises TypeError for outputs or inputs of another width or dtype, or outputs that do not lie in rows."""
        if x.dtype is not self.dtype or x.shape[-1] != self.in_features:
            raise unplanned("add_low_rank", x, self.in_features, self.dtype)
        is_row = y.stride(-1) == 1 or y.shape[-1] == 1
        if y.dtype not in (self.dtype, torch.float32) or y.shape[-1] != self.out_features or not is_row:
            raise unplanned("add_low_rank", y, self.out_features, self.dtype)


class LowRankTerm(NamedTuple):
    """What `add_low_rank` adds to one call of a linear, for its kernel to add before what follows the product.

    Attributes:
        places_T, a_NRI, b_NrO, parts: see `add_low_rank`.
        add: ``add(y_TO, x_TI)`` does the same to a product, in place: for kernels that have no part in it.
        in_c: a, b and parts as kernels in C take them, made once for all steps; None where those must not take it.
    """

    places_T: torch.Tensor
    a_NRI: torch.Tensor
    b_NrO: torch.Tensor
    parts: tuple[int, ...]
    add: Callable[[torch.Tensor, torch.Tensor], None]
    in_c: MatricesInC | None = None


def add_low_rank(
    y_TO: torch.Tensor,
    x_TI: torch.Tensor,
    places_T: torch.Tensor,
    a_NRI: torch.Tensor,
    b_NrO: torch.Tensor,
    *,
    parts: Sequence[int],
) -> None:
    """``y += B (A x)`` in place, with the A and B of each token's place; float32 inside, rounded once.

    Hu et al. 2021, "LoRA", https://arxiv.org/abs/2106.09685. The outputs of part p take rows ``p * r`` to
    ``(p + 1) * r`` of ``A x``. A row's result depends on its own token alone.

    Args:
        y_TO: in the dtype of x or float32; written.
        places_T: int64, from 1. Rows of tokens in place 0, or above N, stay bit for bit as they are.
        a_NRI, b_NrO: the matrices of the adapters, their scaling in B.
        parts: how many outputs each part has.
    """
    num_places, rank, _ = b_NrO.shape
    has_adapter_T = (places_T > 0) & (places_T <= num_places)
    owners_T = torch.where(has_adapter_T, places_T - 1, 0)
    inner_TR = torch.einsum("tri,ti->tr", a_NRI[owners_T].float(), x_TI.float())
    b_TrO = b_NrO[owners_T].float()
    terms = zip(inner_TR.split(rank, dim=1), b_TrO.split(list(parts), dim=2), strict=True)
    added_TO = torch.cat([torch.einsum("tr,tro->to", inner, b) for inner, b in terms], dim=1)
    y_TO.copy_(torch.where(has_adapter_T[:, None], (y_TO.float() + added_TO).to(y_TO.dtype), y_TO))
