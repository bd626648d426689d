"""`read_dp_attention`: engines whose attention is their own, and whose experts are spread over the ranks of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atom_core.config.options import ConfigError

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs


def read_dp_attention(args: EngineArgs) -> dict[str, Any]:
    """What `enable_dp_attention` makes of other settings: without engines to share requests each rank becomes one.

    Raises:
        ConfigError: a setting does not go with it.
    """
    if not args.enable_dp_attention:
        return {}
    # Steps of one engine have rows of all: what is compiled or summed would depend on theirs.
    unfit = {
        f"level {args.level}": args.level > 0,
        "batch_invariant": args.batch_invariant,
        f"pipeline_parallel_size {args.pipeline_parallel_size}": args.pipeline_parallel_size > 1,
        f"distributed_executor_backend {args.distributed_executor_backend}": args.distributed_executor_backend != "mp",
        f"cudagraph_mode {args.cudagraph_mode}": args.cudagraph_mode not in (None, "none"),
        "cudagraph_capture_sizes": args.cudagraph_capture_sizes is not None,
    }
    for what, is_asked in unfit.items():
        if is_asked:
            raise ConfigError(f"enable_dp_attention and {what} do not go together: leave out one of them")
    sizes = {}
    if args.data_parallel_size == 1:
        sizes = {"data_parallel_size": args.tensor_parallel_size, "tensor_parallel_size": 1}
    return {**sizes, "enable_expert_parallel": True}


def spreads_over_engines(args: EngineArgs, num_experts_of: str, *, has_experts: bool, choices: list[str]) -> bool:
    """Whether several engines share their experts; where that is asked for and cannot be seen, a line says why.

    Raises:
        ConfigError: the architecture, of this name, has no experts.
    """
    if not args.enable_dp_attention:
        return False
    if not has_experts:
        raise ConfigError(
            f"enable_dp_attention spreads the experts of a mixture over engines, and {num_experts_of} has no experts: "
            "leave it out, and give data_parallel_size, whose engines need not wait for each other"
        )
    if args.data_parallel_size == 1:
        choices.append("enable_dp_attention = off: one rank has all requests and all experts")
    return args.data_parallel_size > 1
