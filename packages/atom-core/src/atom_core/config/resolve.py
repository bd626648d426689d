"""`resolve_config`: settles every open setting once, against the model and the machine, and says what it chose."""

from __future__ import annotations

import dataclasses
import secrets
from typing import TYPE_CHECKING, cast

from atom_core import settings
from atom_core.config.devices import traits_of
from atom_core.config.draft_model import find_draft_model
from atom_core.config.images.room_for_images import image_token_budget, resolve_images
from atom_core.config.kv_events import read_kv_events
from atom_core.config.kv_transfer import check_travels, of_engine, read_kv_transfer
from atom_core.config.lora.limits import read_lora
from atom_core.config.offload import check_offload, read_offload
from atom_core.config.options import ConfigError
from atom_core.config.parallel.ranks import resolve_parallel
from atom_core.config.sections import (
    CacheConfig,
    CompileConfig,
    EngineConfig,
    ImagesConfig,
    ModelConfig,
    ParallelConfig,
    ProfilerConfig,
)
from atom_core.config.speculation import check_num_states, read_speculation
from atom_core.structured_output.config import StructuredOutputConfig
from atom_kernels.protocols.cache_format import CacheFormat
from atom_models.adapters.tasks import read_tasks
from atom_models.architectures.registry import is_encoder
from atom_models.checkpoint.rope_choice import rope_choice

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs
    from atom_core.config.sections import GraphMode, Warmup
    from atom_core.scheduler import SchedulerConfig
    from atom_core.structured_output.constraints.choice import BackendSetting
    from atom_kernels.platform import Platform
    from atom_models import Checkpoint

# Settings for what an encoder does not have, and why it does not.
_OF_DECODERS = {
    **dict.fromkeys(("method", "draft_model", "speculative_config"), "writes no text that could be guessed"),
    **dict.fromkeys(("kv_transfer_config", "kv_events_config", "kv_offload_memory"), "keeps no cache"),
}


def resolve_config(
    args: EngineArgs, checkpoint: Checkpoint, platform: Platform, *, data_parallel_rank: int = 0
) -> EngineConfig:
    """The configuration of an engine that runs `checkpoint` on `platform`.

    Args:
        data_parallel_rank: its number among engines that share the requests.

    Raises:
        ConfigError: settings that do not fit the model or the machine.
    """
    choices: list[str] = []
    speculation = read_speculation(args)
    if speculation is not None:
        check_num_states(speculation.num_tokens, checkpoint.architecture)
    model = _model(args, checkpoint, platform, choices)
    if model.is_encoder:
        args = _of_encoder(args, model, platform, choices)
    parallel = resolve_parallel(args, model, platform, choices, data_parallel_rank=data_parallel_rank)
    images = resolve_images(args, checkpoint, model.max_model_len, choices)
    return EngineConfig(
        model=model,
        cache=_cache(args, model, parallel, platform, choices=choices),
        scheduler=_scheduler(args, model, images, platform, choices),
        parallel=parallel,
        compile=_compile(args, platform, choices),
        profiler=ProfilerConfig(
            directory=args.torch_profiler_dir or settings.profiler_dir(),
            more=settings.profiler_more(),
            mark_trace=args.mark_trace,
        ),
        device=platform.device,
        structured_output=StructuredOutputConfig(_backend(args), args.jump_forward),
        speculation=find_draft_model(speculation, args, checkpoint, model.max_model_len),
        lora=read_lora(args, read_tasks(checkpoint)),
        images=images,
        choices=tuple(choices),
    )


def _model(args: EngineArgs, checkpoint: Checkpoint, platform: Platform, choices: list[str]) -> ModelConfig:
    dtype = args.dtype
    if dtype == "auto":
        dtype = platform.preferred_dtype
        choices.append(f"dtype = {dtype}: {platform.bf16_reason}")
    own_len = checkpoint.max_model_len
    if args.max_model_len is not None and args.max_model_len > own_len:
        raise ConfigError(f"max_model_len is {args.max_model_len}; the model was made for at most {own_len}")
    if args.max_model_len is None:
        choices.append(f"max_model_len = {own_len}: the model's own")
    if (line := rope_choice(checkpoint.text_config, args.max_model_len or own_len)) is not None:
        choices.append(line)
    return ModelConfig(
        name=args.model,
        path=checkpoint.path,
        architecture=checkpoint.architecture,
        dtype=dtype,
        max_model_len=args.max_model_len or own_len,
        max_model_len_given=args.max_model_len is not None,
        vocab_size=int(checkpoint.text_config["vocab_size"]),
        eos_token_ids=tuple(checkpoint.eos_token_ids),
        load_dummy=args.load_dummy,
        quantization=args.quantization,
        model_impl=args.model_impl,
        is_encoder=is_encoder(checkpoint.architecture),
        text_padding=checkpoint.text_padding,
        skip_tokenizer_init=args.skip_tokenizer_init,
        tokenizer=args.tokenizer,
        seed=secrets.randbits(63) if args.seed is None else args.seed,
    )


def _of_encoder(args: EngineArgs, model: ModelConfig, platform: Platform, choices: list[str]) -> EngineArgs:
    """The settings with what follows from that: no prefixes, no graphs, and steps with room for the longest text.

    Raises:
        ConfigError: a setting is for other models, or leaves no room.
    """
    for name, why in _OF_DECODERS.items():
        if getattr(args, name) is not None:
            raise ConfigError(f"{name} is set, and {model.architecture} is an encoder, which {why}: leave it out")
    if args.pipeline_parallel_size > 1:
        raise ConfigError(
            f"pipeline_parallel_size is {args.pipeline_parallel_size}, and {model.architecture} is an encoder, which "
            "runs in one stage: leave it out"
        )
    longest, budget = model.max_model_len, args.max_num_batched_tokens
    if budget is not None and budget < longest:
        raise ConfigError(
            f"max_num_batched_tokens is {budget}, and {model.architecture} is an encoder, whose texts of up to "
            f"max_model_len = {longest} tokens are computed whole: give at least as many, or a smaller max_model_len"
        )
    if budget is None and (own := traits_of(platform.device).token_budget) < longest:
        choices.append(f"max_num_batched_tokens = {longest}: a step has room for the longest text, which is not cut")
        budget = longest
    elif budget is None:
        budget = own
    return dataclasses.replace(
        args,
        max_num_batched_tokens=budget,
        enable_prefix_caching=False,
        enforce_eager=True,
        cudagraph_mode=None,
        cudagraph_capture_sizes=None,
    )


def _backend(args: EngineArgs) -> BackendSetting:
    from atom_core.structured_output.constraints.choice import INSTALL, has_xgrammar

    if args.structured_output_backend == "xgrammar" and not has_xgrammar():
        raise ConfigError(f"structured_output_backend is xgrammar, which is not installed: {INSTALL}")
    return cast("BackendSetting", args.structured_output_backend)


def _cache(
    args: EngineArgs, model: ModelConfig, parallel: ParallelConfig, platform: Platform, *, choices: list[str]
) -> CacheConfig:
    offload = read_offload(args)
    if offload is not None:
        check_offload(model.architecture)
        if args.prefix_hash != "sha256":
            choices.append("prefix_hash = sha256: blocks that left the cache are found by their names alone")
    transfer = read_kv_transfer(args.kv_transfer_config)
    if transfer is not None:
        check_travels(model.architecture)
    return CacheConfig(
        block_size=args.block_size,
        format=CacheFormat.asked(args.kv_cache_dtype, model.dtype, platform.float8),
        enable_prefix_caching=args.enable_prefix_caching,
        prefix_hash="sha256" if args.prefix_hash == "sha256" or offload is not None else "xxhash64",
        memory_utilization=args.gpu_memory_utilization,
        memory_bytes=args.kv_cache_memory,
        num_blocks=args.num_kv_blocks,
        strict_memory=args.strict_memory,
        events=read_kv_events(args.kv_events_config),
        offload=offload,
        transfer=None if transfer is None else of_engine(transfer, parallel),
    )


def _scheduler(
    args: EngineArgs, model: ModelConfig, images: ImagesConfig | None, platform: Platform, choices: list[str]
) -> SchedulerConfig:
    from atom_core.scheduler import SchedulerConfig

    budget = args.max_num_batched_tokens
    if budget is None:
        traits = traits_of(platform.device)
        budget = traits.token_budget
        choices.append(f"max_num_batched_tokens = {budget}: {traits.token_budget_reason}")
    return SchedulerConfig(
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=model.max_model_len,
        async_scheduling=args.async_scheduling,
        scheduler_delay_factor=args.scheduler_delay_factor,
        priority_ageing=args.priority_ageing,
        max_request_seconds=args.max_request_seconds,
        num_stages=args.pipeline_parallel_size,
        whole_prompts=model.is_encoder,
        max_num_image_tokens=image_token_budget(args, images, budget),
        least_image_step=images.most_tokens if images is not None and images.spec.sees_ahead else 0,
    )


def _compile(args: EngineArgs, platform: Platform, choices: list[str]) -> CompileConfig:
    wants_graphs = args.cudagraph_mode not in (None, "none") or args.cudagraph_capture_sizes is not None
    has_graphs = traits_of(platform.device).has_graphs
    warmup = cast("Warmup", args.warmup or "none")
    if args.warmup is None and has_graphs:
        choices.append("warmup = none: kernels are compiled, and graphs captured, when steps need them")
    if wants_graphs and not has_graphs:
        raise ConfigError("cudagraph_mode and cudagraph_capture_sizes are for GPUs, and there is none: leave them out")
    if wants_graphs and args.enforce_eager:
        raise ConfigError("enforce_eager captures no graphs, and cudagraph settings ask for them: give one of them")
    if has_graphs and args.enable_dp_attention:
        choices.append("cudagraph_mode = none: steps have as many rows as the largest of other engines")
    if not has_graphs or args.enforce_eager or args.enable_dp_attention or args.cudagraph_mode == "none":
        is_alone = args.tensor_parallel_size == args.pipeline_parallel_size == 1 and not args.enable_dp_attention
        return CompileConfig(
            level=args.level,
            records_decodes=not (has_graphs or args.enforce_eager or args.level) and is_alone,
            batch_invariant=args.batch_invariant,
            warmup=warmup,
        )
    sizes = args.cudagraph_capture_sizes or default_capture_sizes(args.max_num_seqs)
    if max(sizes) > args.max_num_seqs:
        raise ConfigError(
            f"cudagraph_capture_sizes go up to {max(sizes)}, and no batch is larger than max_num_seqs = "
            f"{args.max_num_seqs}: leave out what is larger"
        )
    default = "full-and-piecewise" if args.pipeline_parallel_size == 1 else "piecewise"
    if args.cudagraph_mode is None:
        what = "decode steps" if default == "full-and-piecewise" else "the layers of a stage, in decode steps"
        choices.append(f"cudagraph_mode = {default}: {what} of up to {max(sizes)} requests are captured")
    return CompileConfig(
        level=args.level,
        graph_mode=cast("GraphMode", args.cudagraph_mode or default),
        capture_sizes=tuple(sorted(set(sizes))),
        graphs_required=wants_graphs,
        batch_invariant=args.batch_invariant,
        warmup=warmup,
    )


def default_capture_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """1, 2, 4, then steps of 8, from 256 on steps of 16, up to 512; and the largest batch itself."""
    largest = min(max_num_seqs, 512)
    sizes = {1, 2, 4, *range(8, 264, 8), *range(272, 512, 16), largest}
    return tuple(sorted(size for size in sizes if size <= largest))
