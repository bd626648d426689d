"""`StepEnds`: where a step may stop computing the tokens of a request, and where the state behind them is kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import lcm

from atom_core.kv_cache import KVCacheConfig, snapshot_places
from atom_core.messages import PlacedImage, images_within
from atom_core.scheduler.config import SchedulerConfig
from atom_core.scheduler.request import Request


class StepEnds:
    """Cuts what a step computes of a request.

    A state that is handed over at a multiple of 64 tokens leaves no trace in any bit, so prompts of models that keep
    states are cut there. Where a step has no room for so many tokens beside its decodes, they would wait for those to
    end: then prompts are cut anywhere, which costs the last bits.

    Steps also end where a prompt's state is kept for those that begin alike: at the last possible place before its end,
    and at the places of `snapshot_places`. What is decoded is kept nowhere: token by token a state gets other bits.

    Prompts of encoders are not cut at all, and pictures not where their tokens see each other: the first ones need the
    keys of the last, so a step has all that is left of a picture. A found prefix may end inside of one, though:
    what is cached saw the whole picture when it was computed, by whose digest the names of its blocks were made, and
    the tokens that are left see all of it too.

    Args:
        cache: what groups of layers keep.
        config: how many tokens a step computes, and of how many requests.

    Attributes:
        least: tokens of a prompt that a step has room for, whatever else runs; prompts are cut at multiples of it.
        keeps_states: states of prompts are kept.
    """

    def __init__(self, cache: KVCacheConfig, config: SchedulerConfig) -> None:
        has_room = cache.hand_over + config.max_num_seqs <= config.max_num_batched_tokens
        self.least = cache.hand_over if has_room else 1
        self.keeps_states = cache.has_slots and cache.enable_prefix_caching
        self._whole_prompts, self._whole_images = config.whole_prompts, config.least_image_step > 0
        self._grid = lcm(cache.hand_over, cache.block_size)
        self._places = snapshot_places(config.max_model_len, self._grid) if self.keeps_states else []

    def cut(self, request: Request, num_new_tokens: int) -> int:
        """How many of the next `num_new_tokens` tokens of `request` a step may compute; 0 if it has no room for any."""
        if self._whole_prompts and num_new_tokens < request.num_uncomputed_tokens:
            return 0
        first = request.num_computed_tokens
        end = first + num_new_tokens
        if num_new_tokens < request.num_uncomputed_tokens:
            end -= end % self.least
        place = self.next_snapshot(request)
        end = end if place is None else min(end, place)
        if self._whole_images and request.images:
            end = _before_picture(request.images, end)
        return max(end - first, 0)

    def next_snapshot(self, request: Request) -> int | None:
        """How many tokens are computed at the next place where the state is kept; None if there is none."""
        first = request.num_computed_tokens
        last = (request.num_prompt_tokens - 1) // self._grid * self._grid
        if not self.keeps_states or first >= last:
            return None
        index = bisect_right(self._places, first)
        return min(last, self._places[index]) if index < len(self._places) else last


def _before_picture(images: Sequence[PlacedImage], end: int) -> int:
    """`end`, or where the picture begins that is cut there."""
    cut = [placed for placed in images_within(images, end - 1, end) if placed.end > end]
    return cut[0].first_token if cut else end
