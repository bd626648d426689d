"""`read_lora`: how many adapters may be loaded, and with which settings they do not go. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_core.config.options import ConfigError
from atom_core.config.sections import LoRAConfig

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs


def read_lora(args: EngineArgs) -> LoRAConfig | None:
    """The limits of adapters; None where none can be loaded.

    Raises:
        ConfigError: a setting that does not go with adapters, or more adapters than may be loaded.
    """
    if not args.enable_lora and not args.lora_modules:
        return None
    num_modules = len(args.lora_modules or {})
    if num_modules > args.max_loras:
        raise ConfigError(f"lora_modules has {num_modules} adapters, above max_loras {args.max_loras}: raise that")
    unfit = {
        # A traced model has no place to look the adapters of a step up.
        f"level {args.level}": args.level > 0,
        # A product over a few rows has other last bits than one over many.
        "batch_invariant": args.batch_invariant,
        f"pipeline_parallel_size {args.pipeline_parallel_size}": args.pipeline_parallel_size > 1,
        # Other engines and routers know prompts by their tokens alone.
        "kv_transfer_config": args.kv_transfer_config is not None,
        "kv_events_config": args.kv_events_config is not None,
        "model_impl transformers": args.model_impl == "transformers",
    }
    for what, is_asked in unfit.items():
        if is_asked:
            raise ConfigError(f"enable_lora or lora_modules, and {what}, do not go together: leave out one of them")
    return LoRAConfig(args.max_loras, args.max_lora_rank)
