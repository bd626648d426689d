"""`SharedVocabulary`: logits of which each rank has the columns of its own run of token ids.

Shapes: n rows, V tokens of the vocabulary, R columns of a rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.protocols import SINGLE_RANK, Collectives


@dataclass(frozen=True)
class SharedVocabulary:
    """How ranks share logits. Runs are equally long; what stands behind the last id means nothing.

    Attributes:
        ranks: the ranks that share them.
        vocab_size: V, of all ranks together; one rank by itself needs no number.
    """

    ranks: Collectives
    vocab_size: int

    @property
    def is_shared(self) -> bool:
        """Whether a rank has only some of the columns."""
        return self.ranks.size > 1

    @property
    def width(self) -> int:
        """R."""
        return -(-self.vocab_size // self.ranks.size)

    def whole(self, logits_nR: torch.Tensor) -> torch.Tensor:
        """The columns of all ranks, ``[n, V]``: 4 bytes of each row and token go from rank to rank."""
        if not self.is_shared:
            return logits_nR
        return self.ranks.all_gather(logits_nR, dim=-1)[..., : self.vocab_size]

    def hide_padding(self, logits_nR: torch.Tensor) -> None:
        """Makes columns behind the last id -inf, in place."""
        num_own = max(self.vocab_size - self.ranks.rank * self.width, 0)
        logits_nR[:, num_own:] = float("-inf")

    def best(self, ids_n: torch.Tensor, logits_nR: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The best token of all ranks, the lowest id among equals; 8 bytes of each row and rank are exchanged.

        Args:
            ids_n: int64, the best columns of this rank, the lowest among equals.
            logits_nR: float32, with padding hidden.

        Returns:
            int64 ``[n]`` ids of the whole vocabulary, and float32 ``[n]`` their logits, where NaN is -inf.
        """
        best_n = logits_nR.gather(1, ids_n[:, None]).squeeze(1)
        best_n = torch.where(best_n.isnan(), float("-inf"), best_n)
        own_ids_n = (ids_n + self.ranks.rank * self.width).int()
        pairs_n2 = torch.stack([best_n.view(torch.int32), own_ids_n], dim=1)
        # Ranks hold ascending runs and `argmax` takes the first among equals, so the lowest id wins.
        bits_Sn, ids_Sn = self.ranks.all_gather(pairs_n2[None], dim=0).unbind(-1)
        logits_Sn = bits_Sn.contiguous().view(torch.float32)
        winners_1n = logits_Sn.argmax(dim=0, keepdim=True)
        return ids_Sn.gather(0, winners_1n).squeeze(0).long(), logits_Sn.gather(0, winners_1n).squeeze(0)


UNSHARED_VOCABULARY = SharedVocabulary(SINGLE_RANK, 0)
"""That of one rank by itself."""
