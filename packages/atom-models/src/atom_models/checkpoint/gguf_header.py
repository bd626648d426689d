"""A GGUF header as an architecture reads it: checked numbers under its own prefix, and the keys that were not read."""

from __future__ import annotations

import struct
from typing import Any

from atom_models.checkpoint.errors import CheckpointError
from atom_models.checkpoint.gguf_file import GGUFFile

# `expert_gating_func`: how scores of experts are made of logits. 3 is a softmax over the chosen ones: the same weights
# as a softmax over all that is renormalized.
_SCORING = {1: "softmax", 2: "sigmoid", 3: "softmax"}
# Keys that follow from others, or say nothing about the computation.
_REDUNDANT = frozenset({"attention.value_length", "vocab_size"})


class GGUFHeader:
    """The metadata of a file, without the prefix of its architecture.

    Attributes:
        file: whose header it is.
        architecture: `general.architecture`, which is the prefix.
    """

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.architecture = str(file.metadata.get("general.architecture"))
        self._read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands."""
        self._read.add(key)
        return self.file.metadata.get(f"{self.architecture}.{key}", default)

    def number(self, key: str, default: Any = None) -> Any:
        """An integer or a float; a float is its shortest decimal, such as 1e-05 for 9.99999974e-06.

        Raises:
            CheckpointError: the value is no number, or there is neither one nor a default.
        """
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            name = f"{self.architecture}.{key}"
            raise CheckpointError(f"{self.file.path}: the header's {name} is {value!r}, not a number")
        return shortest_decimal(value) if isinstance(value, float) else value

    def optional_number(self, key: str) -> Any:
        """The same, or None where the header does not have the key."""
        return None if self.get(key) is None else self.number(key)

    def numbers(self, **keys: str) -> dict[str, Any]:
        """Field of `config.json` -> its number; each key must be there."""
        return {field: self.number(key) for field, key in keys.items()}

    def scoring(self, default: str) -> str:
        """How a router makes scores: "softmax" or "sigmoid".

        Raises:
            CheckpointError: the header names another way.
        """
        code = self.get("expert_gating_func")
        if code is None:
            return default
        if code not in _SCORING:
            raise CheckpointError(
                f"{self.file.path}: {self.architecture}.expert_gating_func is {code!r}; supported: 1 and 3 (softmax), "
                "2 (sigmoid)"
            )
        return _SCORING[code]

    def require_scoring(self, wanted: str) -> None:
        """Raises CheckpointError where the header says that routers make scores in another way."""
        if self.scoring(wanted) != wanted:
            found = f"{self.architecture}.expert_gating_func is {self.scoring(wanted)}"
            raise CheckpointError(f"{self.file.path}: {found}, but its published models have {wanted}")

    def has(self, tensor: str) -> bool:
        """Whether some block has a tensor of that name, such as ``"attn_q.bias"``."""
        return any(name.startswith("blk.") and name.endswith(f".{tensor}") for name in self.file.tensors)

    def unread(self) -> list[str]:
        """Keys of the architecture that were not asked for: the file says something that the config does not."""
        prefix = f"{self.architecture}."
        keys = (key.removeprefix(prefix) for key in self.file.metadata if key.startswith(prefix))
        return sorted(prefix + key for key in keys if key not in self._read and key not in _REDUNDANT)


def shortest_decimal(value: float) -> float:
    """The shortest decimal that is stored as this float32: what was in `config.json` before it was converted."""
    try:
        stored = struct.pack("<f", value)
    except OverflowError:
        return value
    for digits in range(1, 10):
        decimal = float(f"{value:.{digits}g}")
        if struct.pack("<f", decimal) == stored:
            return decimal
    return value
