"""What `quantization_config` says of the size of a checkpoint's weights. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# OCP Microscaling Formats 1.0: four bits a weight, and an exponent of eight for each 32.
_MXFP4_BITS = 4 + 8 / 32
# bitsandbytes' blocks, and blocks of these where the scales are quantized again.
_NF4_BLOCK, _NF4_OUTER_BLOCK = 64, 256
# Layers that quantizers leave out as a rule, and that sizes do not count among the quantized ones anyway.
_LEFT_OUT = ("lm_head", "embed_tokens", "norm", "gate", "router")


class UnsupportedQuantizationError(ValueError):
    """The checkpoint's or the requested quantization is not known here; the message names those that are."""


@dataclass(frozen=True)
class PublishedFormat:
    """The number format of a checkpoint that is quantized.

    Attributes:
        name: such as "fp8", "mxfp4", "awq int4", "bitsandbytes nf4".
        bits: of a quantized weight, scales included; None where they cannot be told from the config.
        experts_only: the routed experts are quantized, and nothing else.
    """

    name: str
    bits: float | None
    experts_only: bool = False


def published_format(config: Mapping[str, Any]) -> PublishedFormat | None:
    """The format of a checkpoint with that (normalized) config; None where it is not quantized."""
    given = config.get("quantization_config")
    if given is None:
        return None
    if not isinstance(given, Mapping):
        return PublishedFormat(str(given), None)
    method = str(given.get("quant_method")).lower().replace("_", "-")
    found = _METHODS.get(method, lambda _: PublishedFormat(method, None))(given)
    return found if _leaves_out_as_a_rule(given) or found.experts_only else PublishedFormat(found.name, None)


def _fp8(given: Mapping[str, Any]) -> PublishedFormat:
    block = given.get("weight_block_size")
    is_block = isinstance(block, list) and len(block) == 2 and all(type(size) is int and size > 0 for size in block)
    return PublishedFormat("fp8", 8 + 32 / (block[0] * block[1]) if isinstance(block, list) and is_block else 8)


def _mxfp4(given: Mapping[str, Any]) -> PublishedFormat:
    return PublishedFormat("mxfp4", _MXFP4_BITS, experts_only=True)


def _bitsandbytes(given: Mapping[str, Any]) -> PublishedFormat:
    if given.get("load_in_8bit"):
        return PublishedFormat("bitsandbytes int8", 8)
    if not given.get("load_in_4bit"):
        return PublishedFormat("bitsandbytes", None)
    scale = 8 + 32 / _NF4_OUTER_BLOCK if given.get("bnb_4bit_use_double_quant") else 32
    return PublishedFormat(f"bitsandbytes {given.get('bnb_4bit_quant_type') or 'fp4'}", 4 + scale / _NF4_BLOCK)


def _awq_or_gptq(given: Mapping[str, Any]) -> PublishedFormat:
    method = str(given.get("quant_method")).lower()
    bits, group = given.get("bits", given.get("w_bit")), given.get("group_size", given.get("q_group_size"))
    return PublishedFormat(f"{method} int{bits}", _grouped(bits, group, zeros=True))


def _compressed_tensors(given: Mapping[str, Any]) -> PublishedFormat:
    groups = given.get("config_groups")
    weights = [group.get("weights") for group in groups.values()] if isinstance(groups, Mapping) else []
    kinds = [(one.get("type"), one.get("num_bits"), one.get("group_size")) for one in weights if one]
    if len(set(kinds)) != 1:
        return PublishedFormat("compressed-tensors", None)
    kind, bits, group = kinds[0]
    zeros = not weights[0].get("symmetric", True)
    return PublishedFormat(f"compressed-tensors {kind}{bits}", _grouped(bits, group, zeros=zeros))


def _quark(given: Mapping[str, Any]) -> PublishedFormat:
    whole = given.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, Mapping) else None
    if not isinstance(weight, Mapping) or given.get("layer_quant_config"):
        return PublishedFormat("quark", None)
    dtype = str(weight.get("dtype"))
    if dtype == "fp4" and weight.get("group_size") == 32:
        return PublishedFormat("quark mxfp4", _MXFP4_BITS)
    return PublishedFormat(f"quark {dtype}", 8 if dtype.startswith(("fp8", "int8")) else None)


def _grouped(bits: Any, group: Any, *, zeros: bool) -> float | None:
    """Bits of a weight with a scale of 16, and a zero point where there are any, for each group of inputs."""
    if type(bits) is not int:
        return None
    if type(group) is not int or group <= 0:
        return bits  # a scale for each output channel is less than a thousandth
    return bits + (16 + bits * zeros) / group


def _leaves_out_as_a_rule(given: Mapping[str, Any]) -> bool:
    """Whether all linears but the head are quantized: else their size cannot be told without the tensors' names."""
    names = [given.get(key) for key in ("modules_to_not_convert", "llm_int8_skip_modules", "ignore", "exclude")]
    left_out = [str(name) for each in names if isinstance(each, list) for name in each]
    return not given.get("dynamic") and all(name.rstrip("*$").endswith(_LEFT_OUT) for name in left_out)


_METHODS: Mapping[str, Callable[[Mapping[str, Any]], PublishedFormat]] = {
    "awq": _awq_or_gptq,
    "gptq": _awq_or_gptq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "quark": _quark,
}
