"""Requests for tests of the scheduler, and engines without a model that schedule them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import EngineRequest, SamplingParams
from atom_core.scheduler import Scheduler, SchedulerConfig
from fake_worker import FakeEngine


def make_engine(ahead: int = 0, clock: Callable[[], float] = lambda: 0.0, **overrides: Any) -> FakeEngine:
    """An engine of 64 blocks of 4 tokens; `overrides` are of the cache and of the scheduler."""
    cache = {"num_blocks": 64, "block_size": 4}
    cache |= {name: overrides.pop(name) for name in (*cache, "enable_prefix_caching") if name in overrides}
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 128, "async_scheduling": ahead > 0}
    scheduler = Scheduler(SchedulerConfig(**limits | overrides), KVCacheConfig(**cache), clock=clock)
    return FakeEngine(scheduler, cache["num_blocks"], cache["block_size"], ahead)


def make_request(request_id: str = "a", num_prompt_tokens: int = 3, **overrides: Any) -> EngineRequest:
    """A request whose tokens begin with that of its name; `overrides` are fields of it, or sampling parameters."""
    names = ("kind", "eos_token_ids", "priority", "parent_id", "sample_index", "tenant", "cache_salt")
    fields = {name: overrides.pop(name) for name in names if name in overrides}
    token_ids = overrides.pop("token_ids", [ord(request_id[0]) + i for i in range(num_prompt_tokens)])
    return EngineRequest(
        request_id=request_id, token_ids=token_ids, sampling_params=SamplingParams(**overrides), **fields
    )
