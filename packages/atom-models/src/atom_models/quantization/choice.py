"""Which scheme each layer gets: from the checkpoint's `quantization_config`, or asked for at start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from atom_models.checkpoint.quantization_config import (
    UnsupportedQuantizationError,
    check_quantization,
    published_format,
)
from atom_models.quantization.dense import Dense
from atom_models.quantization.int8 import Int8Checkpoint, Int8FewRows, Int8WeightOnly
from atom_models.quantization.scheme import LinearScheme, Quantization


@dataclass(frozen=True)
class OneScheme:
    """One scheme for every linear, but for the layers of which a part of the name is in `skipped`: those stay dense.

    A skipped name matches whole components: ``"lm_head"``, ``"mlp.down_proj"`` or ``"model.layers.0"``.
    """

    name: str
    scheme: LinearScheme
    skipped: tuple[str, ...] = ()

    def scheme_for(self, layer_name: str) -> LinearScheme:
        dotted = f".{layer_name}."
        return Dense() if any(f".{name}." in dotted for name in self.skipped) else self.scheme


UNQUANTIZED = OneScheme("none", Dense())

# Asked for by name; the head stays dense, where rounding costs the most.
ONLINE: Mapping[str, Quantization] = {
    "none": UNQUANTIZED,
    "int8": OneScheme("int8", Int8WeightOnly(), ("lm_head",)),
    "int8-few-rows": OneScheme("int8-few-rows", Int8FewRows(), ("lm_head",)),
}


def choose_quantization(config: Mapping[str, Any], requested: str | None = None) -> Quantization:
    """The quantization of a checkpoint with that (normalized) config; `requested` quantizes dense weights on loading.

    Raises:
        UnsupportedQuantizationError: an unknown method, or a request on top of a checkpoint that is quantized already.
    """
    given = config.get("quantization_config")
    if given is None:
        if (requested or "none") not in ONLINE:
            raise UnsupportedQuantizationError(
                f"unknown quantization {requested!r}; dense weights can be loaded as {', '.join(ONLINE)}"
            )
        return ONLINE[requested or "none"]
    check_quantization(config)
    found = published_format(config)
    name = "" if found is None else found.name
    if requested not in (None, "none"):
        raise UnsupportedQuantizationError(
            f"quantization {requested!r} was asked for, but the checkpoint is quantized as {name} already: leave it out"
        )
    return _READERS[name](given)


def _read_bitsandbytes(config: Mapping[str, Any]) -> Quantization:
    skipped = tuple(config.get("llm_int8_skip_modules") or ("lm_head",))
    return OneScheme("bitsandbytes", Int8Checkpoint(), skipped)


# A reader for each name in `READABLE`.
_READERS: Mapping[str, Callable[[Mapping[str, Any]], Quantization]] = {"bitsandbytes int8": _read_bitsandbytes}
