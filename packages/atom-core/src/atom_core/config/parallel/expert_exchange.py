"""`resolve_exchange`: how rows meet experts that engines share, where a library of the GPU's maker may carry them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_core.config.options import ConfigError
from atom_kernels.mori.library import installed_mori, why_not_mori

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs
    from atom_kernels.platform import Platform


def resolve_exchange(args: EngineArgs, dtype: str, platform: Platform, choices: list[str]) -> str:
    """The setting of engines that share experts: MORI where it is asked for, or left to us and there.

    Raises:
        ConfigError: it is asked for, and cannot serve.
    """
    if args.expert_exchange not in ("auto", "mori"):
        return args.expert_exchange
    reason = why_not_mori(platform, num_ranks=args.data_parallel_size, dtype=dtype)
    if args.tensor_parallel_size > 1:
        reason = f"MORI takes each engine for one device, and these have {args.tensor_parallel_size}"
    if reason is None:
        choices.append(f"expert_exchange = mori: {installed_mori()} carries rows between engines")
        return "mori"
    if args.expert_exchange == "mori":
        raise ConfigError(f"expert_exchange is mori, and {reason}; leave it out, or give all-to-all")
    return "auto"
