"""Settings under the names that ROCm/ATOM's configuration has, for scripts that come from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_core.config.options import ConfigError

OTHER_NAMES = {"kv_cache_block_size": "block_size", "num_kvcache_blocks": "num_kv_blocks"}
# Fields of `compilation_config` that are settings here.
_OF_COMPILATION = ("level", "cudagraph_mode", "cudagraph_capture_sizes")
# Fields that say nothing here: no kernel is chosen by them.
_LEFT_OUT = ("splitting_ops", "cache_dir", "local_cache_dir", "inductor_compile_config")


def with_own_names(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings by the names of `EngineArgs`.

    `compilation_config` is a mapping, or the level alone. A number of blocks of -1 is left to the engine.

    Raises:
        ConfigError: a setting is given twice, or `compilation_config` has a field that nobody knows.
    """
    own: dict[str, Any] = {}
    for name, value in keywords.items():
        if name == "compilation_config":
            found = _compilation(value)
        elif name == "num_kvcache_blocks" and value == -1:
            found = {}
        else:
            found = {OTHER_NAMES.get(name, name): value}
        if twice := own.keys() & found.keys():
            raise ConfigError(f"{min(twice)} is given twice, the second time as {name}; give it once")
        own |= found
    return own


def _compilation(config: Any) -> dict[str, Any]:
    if config is None or isinstance(config, int):
        return {} if config is None else {"level": config}
    fields = dict(config) if isinstance(config, Mapping) else {}
    settings = {name: fields.pop(name) for name in _OF_COMPILATION if fields.get(name) is not None}
    if fields.pop("use_cudagraph", True) is False:
        settings["enforce_eager"] = True
    unknown = sorted(name for name, value in fields.items() if name not in _LEFT_OUT and value is not None)
    if unknown or not isinstance(config, Mapping):
        what = f"has the unknown field {unknown[0]!r}" if unknown else f"is {config!r}"
        raise ConfigError(
            f"compilation_config {what}; it is a level, or has {', '.join(_OF_COMPILATION)}, use_cudagraph"
        )
    return settings
