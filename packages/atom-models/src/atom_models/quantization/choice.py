"""Which quantization a checkpoint gets: its own, by its `quantization_config`, or what is asked for at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.formats import Float8, Integers, Mxfp4, Offset, WeightFormat
from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError
from atom_models.quantization.layer_quantization import HeldFormat, LayerQuantization, Quantization
from atom_models.quantization.layouts import PlainLayout, StoredLayout
from atom_models.quantization.published import StoredQuantization, read_published
from atom_models.quantization.published.headers import Headers


@dataclass(frozen=True)
class OneFormat:
    """Plain weights, held in one format by every linear but for those of which a part of the name is in `skipped`.

    A skipped name matches whole components: ``"lm_head"``, ``"mlp.down_proj"`` or ``"model.layers.0"``.
    """

    name: str
    held: HeldFormat
    skipped: tuple[str, ...] = ()
    cache_field = None

    def for_layer(self, layer_name: str, dtype: torch.dtype) -> LayerQuantization:
        return LayerQuantization(PlainLayout(dtype), HeldFormat() if self.skips(layer_name) else self.held)

    def skips(self, layer_name: str) -> bool:
        dotted = f".{layer_name}."
        return any(f".{name}." in dotted for name in self.skipped)

    def stored_table(self, name: str, dtype: torch.dtype) -> StoredLayout:
        return PlainLayout(dtype)

    def cache_scales(self, attention: str) -> None:
        return None


UNQUANTIZED = OneFormat("none", HeldFormat())

_HELD = {
    "int8": HeldFormat(Integers(8)),
    "int4": HeldFormat(Integers(4, 32, Offset.MINIMUM, torch.float16)),
    "fp8": HeldFormat(Float8(), inputs=Float8()),
    "fp8_block": HeldFormat(Float8(128, 128), inputs=Float8(1, 128)),
    "mxfp4": HeldFormat(Mxfp4()),
}
# What the weights of linears are rounded to by these names.
ROUNDED_TO: Mapping[str, WeightFormat] = {name: held.weights for name, held in _HELD.items() if held.weights}

# Asked for by name: weights stay as the checkpoint has them, as where nothing is asked for.
AS_STORED = "auto"
# The head stays dense, where rounding costs the most, and so does what sees pictures: few weights, of which each token
# of a picture carries the errors on.
_DENSE = ("lm_head", "visual", "vision_tower", "mm_projector", "multi_modal_projector")
# Asked for by name.
ONLINE: Mapping[str, OneFormat] = {
    "none": UNQUANTIZED,
    **{name: OneFormat(name, held, _DENSE) for name, held in _HELD.items()},
}


def choose_quantization(
    config: Mapping[str, Any], requested: str | None = None, headers: Headers | None = None
) -> Quantization:
    """The quantization of a checkpoint with that (normalized) config; `requested` quantizes dense weights on loading.

    Args:
        headers: what the checkpoint's files say of its tensors, which decides where the config is silent or wrong.

    Raises:
        UnsupportedQuantizationError: an unknown method, or a request on top of a checkpoint that is quantized already.
    """
    given = config.get("quantization_config")
    requested = None if requested == AS_STORED else requested
    if given is None:
        if (requested or "none") not in ONLINE:
            raise UnsupportedQuantizationError(
                f"unknown quantization {requested!r}; dense weights can be loaded as {', '.join(ONLINE)}"
            )
        return ONLINE[requested or "none"]
    published = read_published(given)
    if requested not in (None, "none"):
        raise UnsupportedQuantizationError(
            f"quantization {requested!r} was asked for, but the checkpoint is quantized as {published.name} already: "
            "leave it out"
        )
    return StoredQuantization(published, headers)
