"""`resolve_parallel`: how an engine's work is spread, and whether this machine has the devices for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, cast

from atom_core import settings
from atom_core.config.devices import traits_of
from atom_core.config.options import ConfigError
from atom_core.config.parallel.dp_attention import spreads_over_engines
from atom_core.config.parallel.expert_exchange import resolve_exchange
from atom_core.config.sections import BalanceConfig, ModelConfig, ParallelConfig
from atom_core.config.unbuilt import refuse_for_context
from atom_models.architectures.registry import has_experts

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs
    from atom_core.config.executor_backend import ExecutorBackend
    from atom_kernels.platform import Platform


def resolve_parallel(
    args: EngineArgs, model: ModelConfig, platform: Platform, choices: list[str], *, data_parallel_rank: int
) -> ParallelConfig:
    """The ranks of an engine, and the threads of each; a line for what was chosen goes to `choices`.

    Raises:
        ConfigError: this machine cannot have so many, some of them cannot share a context, or rows cannot be carried
            between engines as is asked.
    """
    _check_ranks(args, platform)
    refuse_for_context(args)
    architecture = model.architecture
    over_engines = spreads_over_engines(args, architecture, has_experts=has_experts(architecture), choices=choices)
    spreads = over_engines or _has_experts_to_spread(args, architecture, choices)
    return ParallelConfig(
        num_threads=_num_threads(args, platform, choices),
        tensor_parallel_size=args.tensor_parallel_size,
        data_parallel_size=args.data_parallel_size,
        data_parallel_rank=data_parallel_rank,
        pipeline_parallel_size=args.pipeline_parallel_size,
        decode_context_parallel_size=args.decode_context_parallel_size,
        executor_backend=cast("ExecutorBackend", args.distributed_executor_backend),
        enable_expert_parallel=spreads,
        enable_dp_attention=over_engines,
        expert_exchange=resolve_exchange(args, model.dtype, platform, choices) if over_engines else "auto",
        num_redundant_experts=args.num_redundant_experts if spreads else 0,
        balance=BalanceConfig(args.eplb_window_size, args.eplb_step_interval) if spreads and args.enable_eplb else None,
    )


def _has_experts_to_spread(args: EngineArgs, architecture: str, choices: list[str]) -> bool:
    """Whether whole experts are spread over ranks; where that is asked for and cannot be seen, a line says why."""
    if not args.enable_expert_parallel:
        return False
    reason = None
    if not has_experts(architecture):
        reason = f"{architecture} has no experts"
    elif args.tensor_parallel_size == 1:
        reason = "one rank has all experts (tensor_parallel_size is 1)"
    if reason is not None:
        choices.append(f"enable_expert_parallel = off: {reason}")
    return reason is None


def _num_ranks(args: EngineArgs) -> int:
    return args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size


def _check_ranks(args: EngineArgs, platform: Platform) -> None:
    in_engine = args.tensor_parallel_size * args.pipeline_parallel_size
    if in_engine > 1 and sys.platform != "linux":
        raise ConfigError(f"{_describe(args)}; several ranks need Linux, and this is {sys.platform}")
    num_ranks = _num_ranks(args)
    if args.distributed_executor_backend == "ray":
        return  # Ray knows what its nodes have
    if num_ranks > 1 and traits_of(platform.device).one_rank_each and num_ranks > platform.num_devices:
        raise ConfigError(
            f"{_describe(args)}; each rank needs a GPU of its own, and this process may use {platform.num_devices}: "
            "give at most that"
        )


def _describe(args: EngineArgs) -> str:
    size = args.tensor_parallel_size
    for name in ("data_parallel_size", "pipeline_parallel_size"):
        if (several := getattr(args, name)) > 1:
            return f"{name} is {several} with tensor_parallel_size {size}: {_num_ranks(args)} ranks"
    return f"tensor_parallel_size is {size}"


def _num_threads(args: EngineArgs, platform: Platform, choices: list[str]) -> int:
    if args.num_threads is not None:
        return args.num_threads
    if (limit := settings.omp_num_threads()) is not None:
        choices.append(f"num_threads = {limit}: OMP_NUM_THREADS")
        return limit
    size = _num_ranks(args)
    share = max(platform.num_cores // size, 1)
    of_ranks = f", shared by {size} ranks" if size > 1 else ""
    choices.append(f"num_threads = {share}: the cores this process may use{of_ranks}")
    return share
