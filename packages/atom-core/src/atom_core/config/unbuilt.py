"""Refuses settings of features that are not built, or do not go together, with one line each: none is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from atom_core.config.options import ConfigError

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs
    from atom_core.speculation import SpeculationConfig


def refuse_code_from_afar(args: EngineArgs) -> None:
    """Raise ConfigError where code would come from elsewhere than a folder of this machine, or be needed elsewhere."""
    if not args.trust_remote_code:
        return
    if not Path(args.model).is_dir():
        raise ConfigError(
            f"trust_remote_code runs code of a local folder alone, and {args.model} is none: download it, read its "
            "Python files, and give the folder; or leave trust_remote_code out"
        )
    if args.distributed_executor_backend == "ray":
        raise ConfigError("trust_remote_code makes files on this node: leave out distributed_executor_backend ray")


def refuse_in_stages(args: EngineArgs, speculation: SpeculationConfig | None) -> None:
    """Raise ConfigError for the first setting that does not go with stages of a pipeline, where there are several."""
    if args.pipeline_parallel_size == 1:
        return
    asked = {
        f"data_parallel_size {args.data_parallel_size}": args.data_parallel_size > 1,
        # A draft model reads hidden states and the embedding, and these lie in different stages.
        f"speculation by {speculation and speculation.method}": speculation is not None and speculation.is_by_model,
        # Stages before the last one do not sample, and so tell nobody which of their transfers have ended.
        "kv_offload_memory": args.kv_offload_memory is not None,
        f"cudagraph_mode {args.cudagraph_mode}": (args.cudagraph_mode or "").startswith("full"),
    }
    for what, is_asked in asked.items():
        if is_asked:
            size = args.pipeline_parallel_size
            raise ConfigError(
                f"pipeline_parallel_size is {size}, and {what} does not go with it: leave out one of them"
            )


def refuse_for_context(args: EngineArgs) -> None:
    """Raise ConfigError for the first setting that does not go with a context that ranks share."""
    size = args.decode_context_parallel_size
    if args.tensor_parallel_size % size:
        raise ConfigError(
            f"decode_context_parallel_size is {size}, and tensor_parallel_size {args.tensor_parallel_size}: it must "
            "divide that, since ranks that share a layer share the context too"
        )
    if size > 1 and args.block_size % size:
        raise ConfigError(
            f"decode_context_parallel_size is {size}, and a block of {args.block_size} tokens (block_size) cannot be "
            "shared evenly: give a block_size that it divides"
        )
    # Peers agree on blocks that are whole; and sums over ranks depend on how many rows there are.
    unfit = {"kv_transfer_config": args.kv_transfer_config is not None, "batch_invariant": args.batch_invariant}
    for what, is_asked in unfit.items():
        if is_asked and size > 1:
            raise ConfigError(
                f"decode_context_parallel_size is {size}, and {what} does not go with it: leave out one of them"
            )


def refuse_for_experts(args: EngineArgs) -> None:
    """Raise ConfigError for the first setting that does not go with where experts are."""
    several = args.data_parallel_size > 1 and args.tensor_parallel_size == 1
    if args.enable_expert_parallel and several and not args.enable_dp_attention:
        raise ConfigError(
            f"enable_expert_parallel is on, and each of {args.data_parallel_size} engines (data_parallel_size) has one "
            "device and all experts: give enable_dp_attention too, which spreads them over the engines, or leave it out"
        )
    if args.expert_exchange != "auto" and not args.enable_dp_attention:
        raise ConfigError(
            f"expert_exchange {args.expert_exchange} is about rows of engines that share experts: give "
            "enable_dp_attention too, or leave it out"
        )
    asked = {f"num_redundant_experts {args.num_redundant_experts}": args.num_redundant_experts > 0}
    asked["enable_eplb"] = args.enable_eplb
    for what, is_asked in asked.items():
        if is_asked and not args.enable_expert_parallel:
            raise ConfigError(
                f"{what} is about whole experts on ranks: give enable_expert_parallel too, or leave it out"
            )
    if not args.enable_eplb:
        return
    if args.eplb_window_size > args.eplb_step_interval:
        raise ConfigError(
            f"eplb_window_size is {args.eplb_window_size}; it must be at most eplb_step_interval "
            f"({args.eplb_step_interval})"
        )
    # A compiled model has no place to count at; and sums over other ranks are other sums, in their last bits.
    unfit = {f"level {args.level}": args.level > 0, "batch_invariant": args.batch_invariant}
    for what, is_asked in unfit.items():
        if is_asked:
            raise ConfigError(f"enable_eplb and {what} do not go together: leave out one of them")
