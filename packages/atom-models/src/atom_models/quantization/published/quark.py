"""Configs of AMD's Quark: a rule for all layers, and others for patterns of names."""

from __future__ import annotations

from collections.abc import Mapping

from atom_models.quantization.layouts import Float8Layout, Int8Layout, Mxfp4Layout, StoredLayout
from atom_models.quantization.published.fields import Config, require, unsupported
from atom_models.quantization.published.names import BY_GLOB
from atom_models.quantization.published.published_quantization import PublishedQuantization


def read_quark(given: Config) -> PublishedQuantization:
    """The first pattern that means a layer is its own, and the global rule means all others."""
    groups: list[tuple[tuple[str, ...], StoredLayout | None]] = []
    for pattern, spec in (given.get("layer_quant_config") or {}).items():
        groups.append(((pattern,), _quark_layout(f"layer_quant_config.{pattern}", spec)))
    require("quark", given, "layer_type_quant_config", ({}, None))
    groups.append(((), _quark_layout("global_quant_config", given.get("global_quant_config") or {})))
    return PublishedQuantization("quark", tuple(groups), tuple(given.get("exclude") or ()), BY_GLOB)


def _quark_layout(where: str, spec: Config) -> StoredLayout | None:
    weight = spec.get("weight")
    if weight is None:
        return None
    rounds_inputs = spec.get("input_tensors") is not None
    if isinstance(weight, Mapping):
        match weight.get("dtype"), weight.get("qscheme"):
            case ("fp8_e4m3", "per_tensor" | "per_channel"):
                return Float8Layout(ignored=("input_scale", "output_scale"), rounds_inputs=rounds_inputs)
            case ("int8", "per_tensor" | "per_channel"):
                return Int8Layout(rounds_inputs=rounds_inputs)
            case ("fp4", "per_group") if weight.get("group_size") == 32 and weight.get("scale_format") == "e8m0":
                return Mxfp4Layout("weight", rounds_inputs=rounds_inputs)
    found = weight if not isinstance(weight, Mapping) else f"{weight.get('dtype')} {weight.get('qscheme')}"
    raise unsupported("quark", f"{where}.weight", found, "fp8_e4m3 and int8 per tensor or channel, fp4 per group of 32")
