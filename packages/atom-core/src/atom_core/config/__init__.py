"""Configuration: the flat `EngineArgs` that people write, the resolved `EngineConfig` that parts take sections of."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_HOMES = {
    "CacheConfig": "sections",
    "CompileConfig": "sections",
    "ConfigError": "options",
    "EngineArgs": "engine_args",
    "EngineConfig": "sections",
    "ModelConfig": "sections",
    "Option": "options",
    "ParallelConfig": "sections",
    "ProfilerConfig": "sections",
    "add_options": "options",
    "options_of": "options",
    "resolve_config": "resolve",
}

__all__ = [
    "CacheConfig",
    "CompileConfig",
    "ConfigError",
    "EngineArgs",
    "EngineConfig",
    "ModelConfig",
    "Option",
    "ParallelConfig",
    "ProfilerConfig",
    "add_options",
    "options_of",
    "resolve_config",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
