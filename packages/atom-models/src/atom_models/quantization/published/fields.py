"""Fields of a `quantization_config`: their values, and the refusal of others by the field's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError

Config = Mapping[str, Any]
INSTEAD = "Use the model's checkpoint in bfloat16 or a GGUF file of it"


def is_pair(value: Any) -> bool:
    """Whether it is the height and the width of a block."""
    return isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value)


def group_size(method: str, field: str, size: Any) -> int | None:
    """Inputs that share a scale; None, or -1 in a config, stands for a whole row."""
    if size in (None, -1):
        return None
    if type(size) is not int or size <= 0:
        raise unsupported(method, field, size, "a number of inputs, and -1 for whole rows")
    return size


def require(method: str, given: Config, key: str, allowed: Sequence[Any], also: str | None = None) -> None:
    """Refuse another value of a field than those allowed; some publishers call the field `also`."""
    value = given.get(key) if also is None else given.get(key, given.get(also))
    if value not in allowed:
        shown = ", ".join(str(one) for one in allowed if one is not None)
        raise unsupported(method, key, value, shown or "nothing")


def unsupported(method: str, field: str, value: Any, allowed: str) -> UnsupportedQuantizationError:
    """The error for a value that nobody reads."""
    return UnsupportedQuantizationError(
        f"the checkpoint is quantized as {method} with {field} {value!r}, which this version does not read; it reads "
        f"{allowed}. {INSTEAD}"
    )
