"""`read_lora`: how many adapters may be loaded, and with which settings they do not go. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_core.config.options import ConfigError
from atom_core.config.sections import LoRAConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atom_core.config.engine_args import EngineArgs
    from atom_models.adapters.tasks import Task


def read_lora(args: EngineArgs, tasks: Sequence[Task] = ()) -> LoRAConfig | None:
    """The limits of adapters; None where none can be loaded.

    Args:
        tasks: adapters that come with the model, beside what the settings ask for.

    Raises:
        ConfigError: a setting that does not go with adapters, or more adapters than may be loaded.
    """
    is_asked = args.enable_lora or bool(args.lora_modules)
    if not is_asked and not tasks:
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
    for what, is_set in unfit.items():
        if is_set and is_asked:
            raise ConfigError(f"enable_lora or lora_modules, and {what}, do not go together: leave out one of them")
        if is_set:
            raise ConfigError(f"{what} does not go with adapters, which this model has for its tasks: leave it out")
    num_own, max_rank = (args.max_loras, args.max_lora_rank) if is_asked else (0, 1)
    return LoRAConfig(num_own + len(tasks), max(max_rank, *(task.rank for task in tasks)) if tasks else max_rank)
