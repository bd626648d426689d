"""Configuration: the flat `EngineArgs` that people write, the resolved `EngineConfig` that parts take sections of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.lazy_names import lazy_names

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs
    from atom_core.config.options import ConfigError, Option, add_options, options_of
    from atom_core.config.resolve import resolve_config
    from atom_core.config.sections import (
        CacheConfig,
        CompileConfig,
        EngineConfig,
        ModelConfig,
        ParallelConfig,
        ProfilerConfig,
    )
    from atom_core.config.speculation import check_num_states
    from atom_kernels.protocols.cache_format import CACHE_DTYPES, CacheFormat

__all__ = [
    "CACHE_DTYPES",
    "CacheConfig",
    "CacheFormat",
    "CompileConfig",
    "ConfigError",
    "EngineArgs",
    "EngineConfig",
    "ModelConfig",
    "Option",
    "ParallelConfig",
    "ProfilerConfig",
    "add_options",
    "check_num_states",
    "options_of",
    "resolve_config",
]

__getattr__ = lazy_names(__name__)
