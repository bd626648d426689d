"""Fields of the files that say how pictures are prepared. Torch-free."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atom_models.checkpoint.errors import CheckpointError

PREPROCESSOR = "preprocessor_config.json"
# Numbers of Pillow's.
BILINEAR, BICUBIC = 2, 3
# What our processor does, by the fields with which others say so; where they say something else, it is not ours.
_ALWAYS: Mapping[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
}


def check_always(processor: Mapping[str, Any], *, resample: int = BICUBIC) -> None:
    """Refuses a processor that does not do as ours, which resizes by the filter of that number."""
    for name, value in {**_ALWAYS, "resample": resample}.items():
        if processor.get(name, value) not in (value, None):
            raise CheckpointError(
                f"{PREPROCESSOR}: {name} is {processor[name]!r}, which is not implemented; it can be {value}"
            )
    factor = processor.get("rescale_factor")
    if factor is not None and not math.isclose(number(factor, "rescale_factor"), 1 / 255, rel_tol=1e-6):
        raise CheckpointError(
            f"{PREPROCESSOR}: rescale_factor is {factor!r}, which is not implemented; it can be 1 / 255"
        )


def colors(processor: Mapping[str, Any], name: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
    """Three numbers of the processor, for red, green and blue; those that it divides by are not 0."""
    given = processor.get(name)
    if given is None:
        return default
    if not isinstance(given, list) or len(given) != 3:
        raise CheckpointError(f"{PREPROCESSOR}: {name} is {given!r}; it must be a list of three numbers")
    red, green, blue = (number(one, name) for one in given)
    if name == "image_std" and not all((red, green, blue)):
        raise CheckpointError(f"{PREPROCESSOR}: image_std is {(red, green, blue)}; no number of it can be 0")
    return red, green, blue


def number(value: Any, name: str) -> float:
    """A finite number of the processor."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise CheckpointError(f"{PREPROCESSOR}: {name} has {value!r}, not a finite number")
    return float(value)


def whole(fields: Mapping[str, Any], name: str, where: str, *, least: int = 1) -> int:
    """An integer from `least` on."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        lacks = "lacks" if value is None else f"has {value!r} as"
        raise CheckpointError(f"{where} {lacks} {name}: a model that takes pictures needs an integer from {least} on")
    return value


def one_number(value: Any, name: str, where: str) -> int:
    """A length that may be given for both directions, which must be equal: 14, ``[14, 14]``, or height and width.

    Raises:
        CheckpointError: it is none, or two different ones.
    """
    given = list(value.values()) if isinstance(value, Mapping) else value
    sides = given if isinstance(given, list) else [given]
    if not sides or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in sides):
        raise CheckpointError(f"{where}: {name} is {value!r}; it must be an integer from 1 on, for both directions")
    if len(set(sides)) > 1:
        raise CheckpointError(f"{where}: {name} is {value!r}; both directions must have one")
    return sides[0]


def added_token(folder: Path, text: str) -> int | None:
    """The id of a token that stands beside the vocabulary of a tokenizer; None where no file of it says so."""
    names = _json(folder / "tokenizer_config.json").get("added_tokens_decoder") or {}
    for token_id, token in names.items() if isinstance(names, Mapping) else ():
        if isinstance(token, Mapping) and token.get("content") == text and str(token_id).isdigit():
            return int(token_id)
    for token in _json(folder / "tokenizer.json").get("added_tokens") or ():
        if isinstance(token, Mapping) and token.get("content") == text and isinstance(token.get("id"), int):
            return token["id"]
    return None


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
