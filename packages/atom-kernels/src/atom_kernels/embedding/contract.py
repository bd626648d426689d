"""What the vocabulary lookup computes, in plain torch. T: tokens, V: vocabulary, D: hidden size."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.formats import Plain, WeightFormat
from atom_kernels.formats.weight_format import PLAIN_BY_DEFAULT


@dataclass(frozen=True)
class EmbeddingProblem:
    """Rows of a table in `dtype`.

    Attributes:
        first_id: the id of the table's first row where the vocabulary is split over ranks.
        weight_format: the table's format, whose parts have an element or more for each row; by default plain numbers.
    """

    num_embeddings: int
    embedding_dim: int
    dtype: torch.dtype
    first_id: int | None = None
    weight_format: WeightFormat = PLAIN_BY_DEFAULT

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight_format", self.weight_format or Plain(self.dtype))

    @property
    def is_plain(self) -> bool:
        return self.weight_format == Plain(self.dtype)


def embedding(ids_T: torch.Tensor, table_VD: torch.Tensor, *, first_id: int | None = None) -> torch.Tensor:
    """Rows of `table_VD` for `ids_T` (int32 or int64) -> [T, D].

    With `first_id` the table holds the ids ``first_id .. first_id + V - 1`` and ids outside give zeros, so that the sum
    over ranks is the lookup. Without it an id outside the table is a mistake of the caller: an IndexError here, and
    zeros from a GPU's kernel, which cannot raise.
    """
    if first_id is None:
        return torch.nn.functional.embedding(ids_T, table_VD)
    local = ids_T - first_id
    outside = (local < 0) | (local >= table_VD.shape[0])
    rows = torch.nn.functional.embedding(local.masked_fill(outside, 0), table_VD)
    return rows.masked_fill(outside.unsqueeze(-1), 0)


def check_ids(ids: torch.Tensor) -> None:
    """Raises TypeError for ids that are not int32 or int64."""
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"embedding takes ids in int32 or int64, not in {ids.dtype}")
