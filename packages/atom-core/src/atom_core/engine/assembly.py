"""What an engine makes of its configuration and of what its workers found out when they loaded."""

from __future__ import annotations

import itertools

import msgspec

from atom_core.config.options import ConfigError
from atom_core.config.sections import EngineConfig
from atom_core.engine.info import EngineInfo
from atom_core.engine.lockstep import Lockstep, NoLockstep
from atom_core.kv_cache import KVCacheConfig
from atom_core.kv_cache.elsewhere.offload import OffloadedBlocks
from atom_core.kv_cache.elsewhere.peers import PeerBlocks
from atom_core.kv_events import KVEventPublisher
from atom_core.scheduler import Scheduler
from atom_core.speculation import make_speculation
from atom_core.worker.ranks.meeting import Engines
from atom_core.worker.runner import RunnerInfo


def make_scheduler(config: EngineConfig, runner: RunnerInfo) -> Scheduler:
    """The scheduler of an engine."""
    cache, ids = config.cache, itertools.count(1)
    in_memory, on_disk = runner.offload_places
    offload = peers = None
    if cache.offload is not None:
        offload = OffloadedBlocks(in_memory, on_disk, num_others=runner.send_places, ids=ids)
    if cache.transfer is not None:
        peers = PeerBlocks(
            cache.transfer,
            groups=runner.groups,
            block_size=cache.block_size,
            first_place=in_memory,
            num_places=runner.send_places,
            ids=ids,
        )
    return Scheduler(
        msgspec.structs.replace(config.scheduler, max_model_len=runner.max_model_len),
        KVCacheConfig(
            num_blocks=runner.num_blocks,
            block_size=config.cache.block_size,
            enable_prefix_caching=config.cache.enable_prefix_caching and runner.can_keep_prefixes,
            prefix_hash=config.cache.prefix_hash,
            groups=runner.groups,
            num_slots=runner.num_slots,
            num_snapshots=runner.num_snapshots,
            tells_events=config.cache.events is not None,
            names_cover_next=config.speculation is not None and config.speculation.keeps_by_next,
        ),
        speculation=make_speculation(config.speculation),
        elsewhere=offload,
        peers=peers,
    )


def make_lockstep(config: EngineConfig) -> Lockstep | NoLockstep:
    """What has an engine take its steps with others, where these share their experts."""
    parallel = config.parallel
    if not parallel.enable_dp_attention:
        return NoLockstep()
    if parallel.meeting_folder is None:
        raise ConfigError("engines that share their experts are started together: by a server, or by `LLMEngine`")
    return Lockstep(parallel.meeting_folder, Engines(parallel.data_parallel_rank, parallel.data_parallel_size))


def make_publisher(config: EngineConfig) -> KVEventPublisher | None:
    """What tells routers of cached blocks, where that is asked for; ConfigError where its address cannot be had."""
    if config.cache.events is None:
        return None
    try:
        return KVEventPublisher(config.cache.events, config.parallel.data_parallel_rank)
    except OSError as error:
        raise ConfigError(f"kv_events_config: {error.strerror}") from None


def engine_info(config: EngineConfig, runner: RunnerInfo) -> EngineInfo:
    """What a front end is told."""
    return EngineInfo(
        model=config.model.name,
        model_path=str(config.model.path),
        architecture=config.model.architecture,
        max_model_len=runner.max_model_len,
        vocab_size=config.model.vocab_size,
        dtype=config.model.dtype,
        kv_cache_dtype=config.cache.format.name,
        device=config.device,
        num_blocks=runner.num_blocks,
        block_size=config.cache.block_size,
        num_groups=len(runner.groups),
        num_offload_blocks=max(runner.offload_places),
        max_num_seqs=config.scheduler.max_num_seqs,
        max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
        enable_prefix_caching=config.cache.enable_prefix_caching and runner.can_keep_prefixes,
        eos_token_ids=config.model.eos_token_ids,
        num_threads=config.parallel.num_threads,
        tensor_parallel_size=config.parallel.tensor_parallel_size,
        data_parallel_size=config.parallel.data_parallel_size,
        pipeline_parallel_size=config.parallel.pipeline_parallel_size,
        decode_context_parallel_size=config.parallel.decode_context_parallel_size,
        enable_expert_parallel=config.parallel.enable_expert_parallel,
        enable_dp_attention=config.parallel.enable_dp_attention,
        profiler_dir=config.profiler.directory,
        timings=dict(runner.timings),
        choices=[*config.choices, *runner.choices],
        is_encoder=config.model.is_encoder,
        text_padding=config.model.text_padding,
        images=None if config.images is None else config.images.spec,
    )
