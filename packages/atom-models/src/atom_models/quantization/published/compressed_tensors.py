"""Configs of compressed-tensors: groups of layers, each with what its weights and inputs are rounded to."""

from __future__ import annotations

from collections.abc import Mapping

from atom_models.quantization.layouts import (
    Float8Layout,
    Int8Layout,
    Mxfp4Layout,
    Nvfp4Layout,
    PackedInt4Layout,
    PackedInt8Layout,
    StoredLayout,
)
from atom_models.quantization.published.fields import Config, group_size, is_pair, unsupported
from atom_models.quantization.published.names import BY_TARGET
from atom_models.quantization.published.published_quantization import PublishedQuantization


def read_compressed_tensors(given: Config) -> PublishedQuantization:
    """Each group names its layers, or a pattern or a class of them."""
    groups = given.get("config_groups")
    if not groups and given.get("kv_cache_scheme"):  # only the cache is quantized
        return PublishedQuantization("compressed-tensors", (), dialect=BY_TARGET)
    if not isinstance(groups, Mapping) or not groups:
        raise unsupported("compressed-tensors", "config_groups", groups, "at least one group")
    read = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise unsupported("compressed-tensors", f"config_groups.{name}", group, "weights and targets")
        layout = _compressed_layout(f"config_groups.{name}", group, str(group.get("format") or given.get("format")))
        read.append((tuple(group.get("targets") or ("Linear",)), layout))
    # A name beats a pattern, and a pattern a class.
    read.sort(key=lambda one: min(2 if rule == "Linear" else rule.startswith("re:") for rule in one[0]))
    return PublishedQuantization("compressed-tensors", tuple(read), tuple(given.get("ignore") or ()), BY_TARGET)


def _compressed_layout(where: str, group: Config, form: str) -> StoredLayout | None:
    weights = group.get("weights")
    if weights is None:
        return None
    kind = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    size, rounds_inputs = weights.get("group_size"), group.get("input_activations") is not None
    match kind:
        case ("float", 8, "tensor" | "channel"):
            return Float8Layout(rounds_inputs=rounds_inputs)
        case ("float", 8, "block") if is_pair(weights.get("block_structure")):
            rows, columns = weights["block_structure"]
            return Float8Layout((rows, columns), rounds_inputs=rounds_inputs)
        case ("int", 8, "tensor" | "channel" | "group") if form == "pack-quantized" and weights.get("symmetric", True):
            return PackedInt8Layout(group_size("compressed-tensors", f"{where}.weights.group_size", size))
        case ("int", 8, "tensor" | "channel") if weights.get("symmetric", True):
            # Inputs around another number than zero are left as they are.
            return Int8Layout(rounds_inputs=rounds_inputs and group["input_activations"].get("symmetric", True))
        case ("int", 4, "group" | "channel"):
            if weights.get("actorder") not in (None, "weight", "static", False):
                raise unsupported("compressed-tensors", f"{where}.actorder", weights["actorder"], "weight, null")
            inputs = group_size("compressed-tensors", f"{where}.weights.group_size", size)
            is_symmetric = weights.get("symmetric", True)
            rounds_rows = inputs is None and is_symmetric and _are_float8_rows(group.get("input_activations"))
            return PackedInt4Layout(inputs, not is_symmetric, rounds_inputs=rounds_rows)
        case ("float", 4, _) if size == 32:
            return Mxfp4Layout(rounds_inputs=rounds_inputs)
        case ("float", 4, _) if size == 16:
            return Nvfp4Layout()
    told = {key: weights.get(key) for key in ("type", "num_bits", "strategy", "group_size", "symmetric")}
    found = ", ".join(f"{key} {value}" for key, value in {"format": form, **told}.items())
    allowed = "fp8, int4, mxfp4 and nvfp4, and int8 that is symmetric"
    raise unsupported("compressed-tensors", f"{where}.weights", found, allowed)


def _are_float8_rows(activations: Config | None) -> bool:
    """Whether activations are rounded to fp8 as they come, each row to a scale of its own."""
    wanted = {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True}
    return isinstance(activations, Mapping) and wanted.items() <= activations.items()
