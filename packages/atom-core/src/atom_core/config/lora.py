"""`read_lora`: what the settings say of adapters, checked. Torch-free."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from atom_core.config.options import ConfigError
from atom_core.config.sections import LoRAConfig

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs

NAME = re.compile(r"[A-Za-z0-9_.:/@+\-]{1,128}")


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


def read_modules(name: str, value: Any) -> dict[str, str]:
    """Folders by the names of their adapters.

    Args:
        name: the setting's.
        value: a mapping; or words, each ``name=path``, or such a mapping in JSON, or an object of JSON with name and
            path, as in vLLM.

    Raises:
        ConfigError: it is none of these, or has a name twice.
    """
    if isinstance(value, Mapping):
        return _checked(name, list(value.items()))
    words = value.split() if isinstance(value, str) and not value.lstrip().startswith("{") else value
    pairs: list[tuple[Any, Any]] = []
    for word in [words] if isinstance(words, str) else list(words):
        if isinstance(word, Mapping):
            pairs += _of_object(word)
        elif str(word).lstrip().startswith("{"):
            try:
                pairs += _of_object(json.loads(word))
            except ValueError as error:
                raise ConfigError(f"{name} has {word!r}, which is not JSON: {error}") from None
        else:
            adapter, _, path = str(word).partition("=")
            pairs.append((adapter, path))
    return _checked(name, pairs)


def _of_object(given: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    return [(given["name"], given["path"])] if {"name", "path"} <= given.keys() else list(given.items())


def _checked(name: str, pairs: list[tuple[Any, Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for adapter, path in pairs:
        if not isinstance(adapter, str) or not NAME.fullmatch(adapter) or not isinstance(path, str) or not path:
            raise ConfigError(f"{name} has {adapter!r} = {path!r}; write name=path, such as sql=/models/sql-adapter")
        if adapter in found:
            raise ConfigError(f"{name} has the name {adapter} twice")
        found[adapter] = path
    return found
