"""`EmbeddingModel`: what a model's folder says about its vectors. Torch-free."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom_core.errors import InvalidRequestError
from atom_core.messages import Pooling, PoolingKind

logger = logging.getLogger(__name__)

# Ways of pooling as `sentence-transformers` spells them.
_POOLINGS: dict[str, PoolingKind] = {
    "cls": "cls",
    "cls_token": "cls",
    "lasttoken": "last",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean",
    "mean_tokens": "mean",
}
# What points where the mean does, and has another length.
_OTHER_LENGTHS = ("mean_sqrt_len_tokens",)
# Modules that a vector goes through; others would change it.
_MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class EmbeddingModel:
    """How prompts become vectors where a request does not say.

    Attributes:
        pooling: what the model's `sentence-transformers` modules do; "mean" where it has none.
        normalizes: vectors have length 1: the modules say so, or there are none.
        refusal: why those modules cannot be followed, so that requests must choose a pooling; None if they can be.
        shorter: lengths that its vectors may be cut to; empty if none.
        is_any_shorter: whether every length will do (a matryoshka model that lists none).
    """

    pooling: PoolingKind = "mean"
    normalizes: bool = True
    refusal: str | None = None
    shorter: tuple[int, ...] = ()
    is_any_shorter: bool = False

    @classmethod
    def read(cls, path: str | Path) -> EmbeddingModel:
        """What the folder at `path` says; a file, or a folder that says nothing, gives the defaults."""
        folder = Path(path)
        config = _object(folder / "config.json")
        dimensions = config.get("matryoshka_dimensions")
        shorter = tuple(size for size in dimensions if type(size) is int) if isinstance(dimensions, list) else ()
        _log_prompts(folder)
        return cls(*_pooling(folder), shorter, not shorter and config.get("is_matryoshka") is True)

    def choose_pooling(self, pooling: PoolingKind | None) -> Pooling:
        """A request's own pooling, else the model's; both are normalized as the model's are.

        Raises:
            InvalidRequestError: it has none, and the model's cannot be done.
        """
        if pooling is None and self.refusal is not None:
            raise InvalidRequestError(f"{self.refusal}; choose a pooling: mean, last or cls", "pooling")
        return Pooling(pooling or self.pooling, self.normalizes)

    def check_dimensions(self, dimensions: int | None) -> None:
        """Raise InvalidRequestError unless vectors can be cut to `dimensions`."""
        if dimensions is None or self.is_any_shorter or dimensions in self.shorter:
            return
        allowed = f"to {', '.join(map(str, self.shorter))}" if self.shorter else "not at all: leave 'dimensions' out"
        message = f"dimensions is {dimensions}; this model's vectors can be cut {allowed}"
        raise InvalidRequestError(message, "dimensions", "invalid_value" if self.shorter else "unsupported_parameter")


def shortened(vector: Sequence[float], dimensions: int | None, *, normalizes: bool = True) -> list[float]:
    """The first `dimensions` numbers of a vector, at length 1 again if it `normalizes`; all of it with None."""
    kept = list(vector[:dimensions])
    if not normalizes:
        return kept
    length = math.sqrt(sum(value * value for value in kept))
    return [value / length for value in kept] if length and len(kept) < len(vector) else kept


def _pooling(folder: Path) -> tuple[PoolingKind, bool, str | None]:
    """The pooling of the folder's modules, whether they normalize, and why they cannot be followed."""
    modules = _json(folder / "modules.json")
    modules = modules if isinstance(modules, list) else []
    kinds = [str(one.get("type")).rpartition(".")[2] if isinstance(one, dict) else str(one) for one in modules]
    pooling: PoolingKind = "mean"
    normalizes = not modules or "Normalize" in kinds
    for kind, module in zip(kinds, modules, strict=True):
        if kind not in _MODULES:
            return (
                pooling,
                normalizes,
                f"modules.json has a {kind}, which would change the vectors and is not supported",
            )
        if kind != "Pooling":
            continue
        modes = _modes(_object(folder / Path(str(module.get("path"))).name / "config.json"))
        if len(modes) != 1 or modes[0] not in _POOLINGS:
            given = " and ".join(modes) or "nothing"
            return pooling, normalizes, f"this model pools by {given}, which is not supported"
        if modes[0] in _OTHER_LENGTHS and not normalizes:
            return pooling, normalizes, f"this model pools by {modes[0]} and does not normalize, which is not supported"
        pooling = _POOLINGS[modes[0]]
    return pooling, normalizes, None


def _modes(config: Mapping[str, Any]) -> list[str]:
    """The ways of pooling that a module's config asks for. Older configs have a switch for each, newer ones a name."""
    named = config.get("pooling_mode")
    if named is not None:
        return [str(mode) for mode in named] if isinstance(named, list) else [str(named)]
    switches = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    return [name.removeprefix("pooling_mode_") for name in switches]


def _log_prompts(folder: Path) -> None:
    """Log that texts are embedded as they come, if `sentence-transformers` would put a prompt before them."""
    config = _object(folder / "config_sentence_transformers.json")
    prompts = config.get("prompts")
    names = [str(name) for name, text in prompts.items() if text] if isinstance(prompts, dict) else []
    if names:
        default = config.get("default_prompt_name")
        always = f" ({default!r} before every text)" if default else ""
        logger.warning(
            "embeddings: this model was trained with prompts%s, which are in config_sentence_transformers.json under "
            "%s: put them before your texts yourself, texts are embedded as they come",
            always,
            ", ".join(names),
        )


def _object(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one where there is none."""
    value = _json(path)
    return value if isinstance(value, dict) else {}


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
