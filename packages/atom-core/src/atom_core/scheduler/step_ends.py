"""`StepEnds`: where a step may stop computing the tokens of a request."""

from __future__ import annotations

from atom_core.kv_cache import KVCacheConfig
from atom_core.scheduler.config import SchedulerConfig
from atom_core.scheduler.request import Request


class StepEnds:
    """Cuts what a step computes of a request.

    A state that is handed over at a multiple of 64 tokens leaves no trace in any bit, so prompts of models that keep
    states are cut there. Where a step has no room for so many tokens beside its decodes, they would wait for those to
    end: then prompts are cut anywhere, which costs the last bits.

    Args:
        cache: what groups of layers keep.
        config: how many tokens a step computes, and of how many requests.

    Attributes:
        least: tokens of a prompt that a step has room for, whatever else runs; prompts are cut at multiples of it.
    """

    def __init__(self, cache: KVCacheConfig, config: SchedulerConfig) -> None:
        has_room = cache.hand_over + config.max_num_seqs <= config.max_num_batched_tokens
        self.least = cache.hand_over if has_room else 1

    def cut(self, request: Request, num_new_tokens: int) -> int:
        """How many of the next `num_new_tokens` tokens of `request` a step may compute; 0 if it has no room for any."""
        if num_new_tokens >= request.num_uncomputed_tokens:
            return num_new_tokens
        end = request.num_computed_tokens + num_new_tokens
        return max(end - end % self.least - request.num_computed_tokens, 0)
