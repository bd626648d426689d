"""`BatchGeometry`: where the tokens of one step lie, in terms that no host and no backend owns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class BatchGeometry:
    """One step's batch, flattened to tokens; requests of few tokens (decodes) come first, those of none last.

    Device tensors:
        query_start_loc: int32 ``[num_reqs + 1]``, first token of each request in the flat batch.
        seq_lens: int32 ``[num_reqs]``, tokens in the cache once this step's are written.
        block_table: int32 ``[num_reqs, max_blocks]``, block ids in order; entries past the end are undefined.
        slot_mapping: int64 ``[num_tokens]``, ``block_id * block_size + offset`` of each token; -1 writes nothing. A
            decode may begin with such tokens: they are cached already, and pad it to `max_decode_len`.
        sees_until: int32 ``[num_tokens]``, the last position that each token sees in its request, where this lies
            behind its own: tokens of a picture see all of it, so that the step has what is left of it. Others have
            -1 and see up to themselves, as all tokens do where it is None. Those of decodes are not read.

    Host numbers, upper bounds where the device knows better:
        num_reqs, num_tokens, max_query_len, max_seq_len, and num_decodes: how many leading requests have
        at most `max_decode_len` tokens, which is one and the drafts.
        prompts_are_new: all tokens of the requests behind the decodes are in this step, and have slots: nothing of
        these requests was cached before. False where the host does not know.
        num_prompt_keys: tokens in the cache of the requests behind the decodes, all of them together, once this step's
        are written; None where the host does not know.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    num_reqs: int
    num_tokens: int
    num_decodes: int
    max_query_len: int
    max_seq_len: int
    max_decode_len: int = 1
    prompts_are_new: bool = False
    num_prompt_keys: int | None = None
    sees_until: torch.Tensor | None = None

    def dense(self) -> BatchGeometry:
        """The same as kernels read it: contiguous, but for the rows of the block table, and with no slot past a token.

        Converting copies only what has another dtype or stride than the contract says.
        """
        num_tokens = min(self.num_tokens, self.slot_mapping.shape[0])
        block_table = self.block_table.int()
        return replace(
            self,
            query_start_loc=self.query_start_loc.int().contiguous(),
            seq_lens=self.seq_lens.int().contiguous(),
            block_table=block_table if block_table.stride(1) == 1 else block_table.contiguous(),
            slot_mapping=self.slot_mapping[:num_tokens].long().contiguous(),
            num_tokens=num_tokens,
            num_decodes=min(self.num_decodes, self.num_reqs),
            sees_until=None if self.sees_until is None else self.sees_until[:num_tokens].int().contiguous(),
        )
