"""`read_offload`: where blocks go that leave the KV cache, out of the settings for it. Torch-free."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from atom_core.config.options import ConfigError
from atom_core.config.sections import OffloadConfig

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs


def read_offload(args: EngineArgs) -> OffloadConfig | None:
    """The section of these settings; None where nothing is kept.

    Raises:
        ConfigError: settings that do not go together.
    """
    memory, folder, disk = args.kv_offload_memory, args.kv_offload_folder, args.kv_offload_disk
    if (folder is None) != (disk is None):
        both = ("kv_offload_folder", "kv_offload_disk")
        given, lacking = both if disk is None else reversed(both)
        raise ConfigError(f"{given} is given without {lacking}: give both, or neither")
    if memory is None:
        if folder is not None:
            raise ConfigError("kv_offload_folder is given without kv_offload_memory, by which blocks go: give both")
        return None
    if not args.enable_prefix_caching:
        raise ConfigError("kv_offload_memory keeps cached prefixes, and enable_prefix_caching is off: give one of them")
    if disk is None:
        return OffloadConfig(memory)
    if disk <= memory:
        raise ConfigError(
            f"kv_offload_disk is {disk} bytes and kv_offload_memory {memory}: the disk has what is in memory as well, "
            "so give it more"
        )
    return OffloadConfig(memory, Path(folder or ""), disk)


def check_offload(architecture: str) -> None:
    """Raise ConfigError where the model keeps what cannot be offloaded."""
    from atom_models.architectures.registry import keeps_states

    if keeps_states(architecture):
        raise ConfigError(
            f"kv_offload_memory is set, and {architecture} keeps states beside its blocks, without which these serve "
            "nobody: leave it out"
        )
