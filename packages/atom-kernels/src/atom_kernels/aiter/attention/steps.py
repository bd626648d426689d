"""A step as AITER's kernels take it: requests for a kernel of decodes first, then those for a kernel of prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atom_kernels.aiter.attention.pages import PageList, list_tokens

if TYPE_CHECKING:
    import torch

    from atom_kernels.attention.problem import AttentionPrologue
    from atom_kernels.protocols import BatchGeometry


@dataclass(frozen=True)
class SplitStep:
    """One step, cut in two.

    Attributes:
        step: dense.
        num_decodes: leading requests for the kernel of decodes, of up to `max_decode_len` queries each, and so the
            first row that is none of a decode where prompts follow.
        is_padding: bool ``[num_decodes, 1, 1]``, where row r of the decodes is no request's; None where they may have
            several queries.
        prompt_starts: int32, first row of each other request, counted from the first row that is none of a decode.
        prompts_are_new: there are others, and nothing of them was cached before.
        pages: the pages of the other requests; None where there are none, or all are new.
    """

    step: BatchGeometry
    num_decodes: int
    is_padding: torch.Tensor | None
    prompt_starts: torch.Tensor
    prompts_are_new: bool
    pages: PageList | None


def split_step(
    geometry: BatchGeometry, takes_queries: bool, list_prompts: Callable[[BatchGeometry, int], PageList]
) -> SplitStep:
    """Cut the step of `geometry`.

    Args:
        takes_queries: the kernel of decodes takes `max_decode_len` queries.
        list_prompts: ``(step, first)`` -> the pages of the requests from `first` on.
    """
    step = geometry.dense()
    starts, is_padding, pages = step.query_start_loc, None, None
    num_decodes = _leading_decodes(step) if takes_queries else 0
    if num_decodes and step.max_decode_len == 1:
        # Row r is the query of request r, for requests without tokens come after those that have one.
        is_padding = (starts[1 : num_decodes + 1] <= starts[:num_decodes])[:, None, None]
    has_prompts = num_decodes < min(step.num_reqs, step.num_tokens)
    are_new = has_prompts and step.prompts_are_new and num_decodes == step.num_decodes
    if has_prompts and not are_new:
        pages = list_prompts(step, num_decodes)
    return SplitStep(step, num_decodes, is_padding, starts[num_decodes:] - num_decodes, are_new, pages)


def _leading_decodes(step: BatchGeometry) -> int:
    """How many leading requests are decodes, so that the host knows which row the others begin at.

    Requests of one token each are as many rows. Where a request may have several, the step must have no other requests.
    """
    count = min(step.num_decodes, step.num_tokens)
    return 0 if step.max_decode_len > 1 and count < step.num_reqs else count


def list_prompt_tokens(step: BatchGeometry, first: int, block_size: int) -> PageList:
    """The slots of the requests from `first` on, in no more room than they need where the host knows how much."""
    total = step.num_prompt_keys if first == step.num_decodes else None
    return list_tokens(step.block_table[first:], step.seq_lens[first:], block_size, step.max_seq_len, total)


def cut_prologue(prologue: AttentionPrologue, num_tokens: int) -> AttentionPrologue:
    """The same for the first tokens."""
    return replace(prologue, positions=prologue.positions[:num_tokens])
