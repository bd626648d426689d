"""Reads a frozen config dataclass from the fields of `config.json`, naming what is missing or wrong. Torch-free."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar

from atom_models.checkpoint.errors import CheckpointError
from atom_models.config.other_fields import refuse_other_models

T = TypeVar("T")
_EPSILON = "_eps"
_POSITIVE = ("_size", "num_", "head_dim", "max_position")


def read_config(cls: type[T], config: Mapping[str, Any]) -> T:
    """An instance of the dataclass `cls` from fields of the same names; absent or null ones take their defaults.

    A field whose metadata has `also`, a tuple of names, is found under any of those as well; with `null` in its
    metadata, null is that value and not the default.

    Raises:
        CheckpointError: a field without a default is absent, a number is not one, not finite or not positive, heads
            cannot share keys and values evenly, or a field that is not the model's would change its results.
    """
    refuse_other_models(cls, config)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        names = (field.name, *field.metadata.get("also", ()))
        value = next((config[name] for name in names if config.get(name) is not None), None)
        if value is None:
            if "null" in field.metadata and field.name in config:
                values[field.name] = field.metadata["null"]
                continue
            if field.name.endswith(_EPSILON) and field.name in config:
                raise CheckpointError(f"config.json: {field.name} is null; it must be a number above 0, such as 1e-06")
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise CheckpointError(f"config.json lacks {field.name}, which {cls.__name__} needs")
            continue
        _check(field.name, str(field.type), value)
        values[field.name] = value
    heads, kv_heads = values.get("num_attention_heads"), values.get("num_key_value_heads")
    if heads and kv_heads and heads % kv_heads:
        raise CheckpointError(
            f"config.json: num_key_value_heads is {kv_heads}, which does not divide num_attention_heads, {heads}: each "
            "head of keys and values serves as many others"
        )
    return cls(**values)


def _check(name: str, kind: str, value: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind.startswith("int") and not (is_number and isinstance(value, int)):
        raise CheckpointError(f"config.json: {name} is {value!r}, not an integer")
    if kind.startswith("float") and not is_number:
        raise CheckpointError(f"config.json: {name} is {value!r}, not a number")
    if kind.startswith("float") and not (math.isfinite(value) and (value > 0 or not name.endswith(_EPSILON))):
        raise CheckpointError(f"config.json: {name} is {value}; it must be finite{_above_zero(name)}")
    if kind.startswith("bool") and not isinstance(value, bool):
        raise CheckpointError(f"config.json: {name} is {value!r}, not true or false")
    if kind.startswith("int") and any(part in name for part in _POSITIVE) and value < 1:
        raise CheckpointError(f"config.json: {name} is {value}; it must be at least 1")


def _above_zero(name: str) -> str:
    return " and above 0" if name.endswith(_EPSILON) else ""
