"""`read_modules`: the names and folders of adapters, in all the ways in which people write them. Torch-free."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from atom_core.config.options import ConfigError

NAME = re.compile(r"[A-Za-z0-9_.:/@+\-]{1,128}")


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
