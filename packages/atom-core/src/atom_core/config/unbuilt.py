"""Refuses settings of features that are not built, with one line each: no setting is ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_core.config.options import ConfigError

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs


def refuse_unbuilt(args: EngineArgs) -> None:
    """Raise ConfigError for the first setting that asks for something that does not exist yet."""
    asked = {
        f"pipeline_parallel_size {args.pipeline_parallel_size}": args.pipeline_parallel_size > 1,
        f"decode_context_parallel_size {args.decode_context_parallel_size}": args.decode_context_parallel_size > 1,
        "distributed_executor_backend ray": args.distributed_executor_backend == "ray",
        "enable_expert_parallel": args.enable_expert_parallel,
        "enable_dp_attention": args.enable_dp_attention,
    }
    for what, is_asked in asked.items():
        if is_asked:
            raise ConfigError(
                f"{what} is not supported by this version of ATOM: leave it out (built are tensor_parallel_size and "
                "data_parallel_size, on one node)"
            )
    if args.trust_remote_code:
        raise ConfigError("trust_remote_code is not supported: code of a model's repository is never run; leave it out")
