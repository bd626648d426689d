"""`EmbeddingModel`: what a model's folder says of the vectors that it was trained to give. Torch-free."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom_core.engine.errors import InvalidRequestError
from atom_core.messages import Pooling

# Names in the pooling module's own config, as `sentence-transformers` writes it.
_POOLINGS: dict[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}


@dataclass(frozen=True)
class EmbeddingModel:
    """How prompts become vectors where a request does not say.

    Attributes:
        pooling: of the model's `sentence-transformers` modules; "mean" where it has none.
        shorter: lengths that its vectors may be cut to; empty where they may not be.
        is_any_shorter: whether every length will do (a matryoshka model that lists none).
    """

    pooling: Pooling = "mean"
    shorter: tuple[int, ...] = ()
    is_any_shorter: bool = False

    @classmethod
    def read(cls, path: str | Path) -> EmbeddingModel:
        """What the folder at `path` says; a file, or a folder that says nothing, gives the defaults."""
        folder = Path(path)
        config = _object(folder / "config.json")
        dimensions = config.get("matryoshka_dimensions")
        shorter = tuple(size for size in dimensions if type(size) is int) if isinstance(dimensions, list) else ()
        return cls(_pooling(folder), shorter, not shorter and config.get("is_matryoshka") is True)

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raise InvalidRequestError unless vectors can be cut to `dimensions`."""
        if dimensions is None or self.is_any_shorter or dimensions in self.shorter:
            return
        allowed = f"to {', '.join(map(str, self.shorter))}" if self.shorter else "not at all: leave 'dimensions' out"
        message = f"dimensions is {dimensions}; this model's vectors can be cut {allowed}"
        raise InvalidRequestError(message, "dimensions", "invalid_value" if self.shorter else "unsupported_parameter")


def shortened(vector: Sequence[float], dimensions: int | None) -> list[float]:
    """The first `dimensions` numbers of a vector, at length 1 again; all of it with None."""
    kept = list(vector[:dimensions])
    length = math.sqrt(sum(value * value for value in kept))
    return [value / length for value in kept] if length and len(kept) < len(vector) else kept


def _pooling(folder: Path) -> Pooling:
    modules = _json(folder / "modules.json")
    for module in modules if isinstance(modules, list) else ():
        if not isinstance(module, dict) or "Pooling" not in str(module.get("type")):
            continue
        config = _object(folder / Path(str(module.get("path"))).name / "config.json")
        for name, pooling in _POOLINGS.items():
            if config.get(name) is True:
                return pooling
    return "mean"


def _object(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one where there is none."""
    value = _json(path)
    return value if isinstance(value, dict) else {}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
