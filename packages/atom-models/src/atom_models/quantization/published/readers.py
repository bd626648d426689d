"""What a published `quantization_config` says: the layout of each layer's matrix, by the layer's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError, quantization_method
from atom_models.quantization.layouts import (
    AwqLayout,
    Bitsandbytes4Layout,
    Float8Layout,
    GptqLayout,
    Int8Layout,
    Mxfp4BlocksLayout,
    Mxfp4Layout,
    Nvfp4Layout,
    PackedInt4Layout,
    PackedInt8Layout,
    StoredLayout,
)
from atom_models.quantization.published.cache_scales import declared_cache_scales
from atom_models.quantization.published.names import BY_COMPONENT, BY_GLOB, BY_PART, BY_SIGN, BY_TARGET, Dialect, Rules

Config = Mapping[str, Any]
# Whose tensors AutoRound writes, by what it calls their packing.
_AUTO_ROUND: Mapping[Any, str] = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}
_INSTEAD = "Use the model's checkpoint in bfloat16 or a GGUF file of it"


@dataclass(frozen=True)
class Choice:
    """The layout of one layer, and the rule of the config that chose it; a layout of None is not quantized."""

    layout: StoredLayout | None
    rule: str


@dataclass(frozen=True)
class PublishedQuantization:
    """The layouts that a config gives to layers.

    Attributes:
        name: the method's name, such as "compressed-tensors".
        groups: (rules, layout), the first that means a layer is its own; no rules mean every layer.
        skipped: rules of layers that are left as they are.
        dialect: how rules are read.
        cache_field: the field that declares scales for an fp8 KV cache, None if none does.
    """

    name: str
    groups: tuple[tuple[tuple[str, ...], StoredLayout | None], ...]
    skipped: tuple[str, ...] = ()
    dialect: Dialect = BY_COMPONENT
    cache_field: str | None = None

    def choose(self, layer_name: str) -> Choice:
        """What the config says of a linear, by its full name in the checkpoint."""
        rule = self._skipped.first_match(layer_name)
        if rule is not None:
            return Choice(None, f"left out by {rule!r}")
        for rules, layout in self._groups:
            rule = rules.first_match(layer_name) if rules else None
            if rule is not None or rules is None:
                chosen = "meant" if layout else "left out"
                return Choice(layout, f"{chosen} by {rule!r}" if rules else f"as all of {self.name}")
        return Choice(None, "meant by no rule")

    @cached_property
    def _skipped(self) -> Rules:
        return Rules(self.skipped, self.dialect)

    @cached_property
    def _groups(self) -> list[tuple[Rules | None, StoredLayout | None]]:
        return [(Rules(rules, self.dialect) if rules else None, layout) for rules, layout in self.groups]


def read_published(given: Config) -> PublishedQuantization:
    """What the `quantization_config` of a checkpoint says.

    Raises:
        UnsupportedQuantizationError: a method, or a field of one, that is not read here; it names the field.
    """
    if not isinstance(given, Mapping):
        raise UnsupportedQuantizationError(
            f"config.json: quantization_config is {given!r}; it must be an object that names a quant_method"
        )
    method = str(quantization_method({"quantization_config": given}))
    if method not in _READERS:
        raise UnsupportedQuantizationError(
            f"the checkpoint is quantized as {method}, which this version does not read; it reads "
            f"{', '.join(_READERS)}. {_INSTEAD}"
        )
    read = _READERS[method](given)
    for rule in (*read.skipped, *(rule for rules, _ in read.groups for rule in rules)):
        if (problem := read.dialect.why_not(rule)) is not None:
            raise UnsupportedQuantizationError(f"config.json: quantization_config has the rule {rule!r}: {problem}")
    return replace(read, cache_field=declared_cache_scales(given))


def _read_fp8(given: Config) -> PublishedQuantization:
    skipped = tuple(given.get("modules_to_not_convert") or given.get("ignored_layers") or ())
    block = given.get("weight_block_size")
    if block is None:
        layout = Float8Layout()
    elif _is_pair(block):
        layout = Float8Layout((block[0], block[1]), "weight_scale_inv")
    else:
        raise _unsupported("fp8", "weight_block_size", block, "two numbers")
    _require("fp8", given, "fmt", ("e4m3", "float8_e4m3fn", None))
    _require("fp8", given, "activation_scheme", ("dynamic", "static", None))
    return PublishedQuantization("fp8", (((), layout),), (*skipped, "lm_head"))


def _read_fbgemm(given: Config) -> PublishedQuantization:
    skipped = tuple(given.get("modules_to_not_convert") or ())
    return PublishedQuantization(
        "fbgemm-fp8", (((), Float8Layout(ignored=("input_scale", "input_scale_ub"))),), (*skipped, "lm_head")
    )


def _read_bitsandbytes(given: Config) -> PublishedQuantization:
    skipped = tuple(given.get("llm_int8_skip_modules") or ("lm_head",))
    if given.get("load_in_8bit"):
        layout: StoredLayout = Int8Layout("SCB", 127.0, ignored=("weight_format",))
    else:
        _require("bitsandbytes", given, "load_in_4bit", (True,))
        _require("bitsandbytes", given, "bnb_4bit_quant_type", ("nf4", "fp4", None))
        _require("bitsandbytes", given, "bnb_4bit_quant_storage", ("uint8", None))
        kind = given.get("bnb_4bit_quant_type") or "fp4"
        layout = Bitsandbytes4Layout(kind, nested=bool(given.get("bnb_4bit_use_double_quant")))
    return PublishedQuantization("bitsandbytes", (((), layout),), skipped)


def _read_awq(given: Config) -> PublishedQuantization:
    _require("awq", given, "bits", (4,), "w_bit")
    _require("awq", given, "version", ("gemm", "GEMM", None))
    _require("awq", given, "zero_point", (True, None))
    layout = AwqLayout(_group("awq", "group_size", given.get("group_size", given.get("q_group_size"))))
    skipped = tuple(given.get("modules_to_not_convert") or ())
    return PublishedQuantization("awq", (((), layout),), (*skipped, "lm_head"), BY_PART)


def _read_gptq(given: Config) -> PublishedQuantization:
    """The first rule of `dynamic` that means a layer changes fields for it, or leaves it out."""
    _require("gptq", given, "checkpoint_format", ("gptq", "gptq_v2", None))
    dynamic = given.get("dynamic") or {}
    if not isinstance(dynamic, Mapping) or not all(isinstance(changes, Mapping) for changes in dynamic.values()):
        raise _unsupported("gptq", "dynamic", dynamic, "rules with what they change")
    groups: list[tuple[tuple[str, ...], StoredLayout | None]] = []
    for rule, changes in dynamic.items():
        left_out = rule.startswith("-:")
        groups.append(((rule,), None if left_out else _gptq_layout({**given, **changes}, f"dynamic.{rule}.")))
    if not given.get("lm_head"):
        groups.append((("lm_head",), None))
    return PublishedQuantization("gptq", (*groups, ((), _gptq_layout(given))), dialect=BY_SIGN)


def _gptq_layout(given: Config, where: str = "") -> StoredLayout:
    if given.get("bits") != 4:
        raise _unsupported("gptq", f"{where}bits", given.get("bits"), "4")
    zeros_less_one = given.get("checkpoint_format") != "gptq_v2"
    group = _group("gptq", f"{where}group_size", given.get("group_size"))
    return GptqLayout(group, zeros_less_one, bool(given.get("sym", True)), bool(given.get("desc_act")))


def _read_auto_round(given: Config) -> PublishedQuantization:
    """AutoGPTQ's or AutoAWQ's tensors; `extra_config` changes fields for layers, or leaves them out with 16 bits."""
    method, changes = "auto-round", given.get("extra_config") or {}
    _require(method, given, "packing_format", tuple(_AUTO_ROUND))
    _require(method, given, "data_type", ("int", None))
    if not isinstance(changes, Mapping) or not all(isinstance(one, Mapping) for one in changes.values()):
        raise _unsupported(method, "extra_config", changes, "layers with what they change")
    groups: list[tuple[tuple[str, ...], StoredLayout | None]] = []
    for name, fields in changes.items():
        # A name is the layer's; one that is a pattern may begin anywhere.
        rule = f"{re.escape(name)}$" if re.fullmatch(r"[\w.]+", name) else f".*(?:{name})"
        groups.append(((rule,), _auto_round_layout({**given, **fields}, f"extra_config.{name}.")))
    return PublishedQuantization(
        method, (*groups, (("lm_head",), None), ((), _auto_round_layout(given))), dialect=BY_SIGN
    )


def _auto_round_layout(given: Config, where: str = "") -> StoredLayout | None:
    bits = given.get("bits")
    if bits == 16:
        return None
    if bits != 4:
        raise _unsupported("auto-round", f"{where}bits", bits, "4, and 16 for layers that are left out")
    group = _group("auto-round", f"{where}group_size", given.get("group_size"))
    if _AUTO_ROUND[given.get("packing_format")] == "awq":
        return AwqLayout(group)
    return GptqLayout(group, symmetric=bool(given.get("sym", True)))


def _read_mxfp4(given: Config) -> PublishedQuantization:
    skipped = tuple(given.get("modules_to_not_convert") or ())
    return PublishedQuantization("mxfp4", (((), Mxfp4BlocksLayout()),), (*skipped, "lm_head"))


def _read_compressed_tensors(given: Config) -> PublishedQuantization:
    groups = given.get("config_groups")
    if not groups and given.get("kv_cache_scheme"):  # only the cache is quantized
        return PublishedQuantization("compressed-tensors", (), dialect=BY_TARGET)
    if not isinstance(groups, Mapping) or not groups:
        raise _unsupported("compressed-tensors", "config_groups", groups, "at least one group")
    read = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            raise _unsupported("compressed-tensors", f"config_groups.{name}", group, "weights and targets")
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
        case ("float", 8, "block") if _is_pair(weights.get("block_structure")):
            rows, columns = weights["block_structure"]
            return Float8Layout((rows, columns), rounds_inputs=rounds_inputs)
        case ("int", 8, "tensor" | "channel" | "group") if form == "pack-quantized" and weights.get("symmetric", True):
            return PackedInt8Layout(_group("compressed-tensors", f"{where}.weights.group_size", size))
        case ("int", 8, "tensor" | "channel") if weights.get("symmetric", True):
            # Inputs around another number than zero are left as they are.
            return Int8Layout(rounds_inputs=rounds_inputs and group["input_activations"].get("symmetric", True))
        case ("int", 4, "group" | "channel"):
            if weights.get("actorder") not in (None, "weight", "static", False):
                raise _unsupported("compressed-tensors", f"{where}.actorder", weights["actorder"], "weight, null")
            inputs = _group("compressed-tensors", f"{where}.weights.group_size", size)
            return PackedInt4Layout(inputs, not weights.get("symmetric", True))
        case ("float", 4, _) if size == 32:
            return Mxfp4Layout(rounds_inputs=rounds_inputs)
        case ("float", 4, _) if size == 16:
            return Nvfp4Layout()
    told = {key: weights.get(key) for key in ("type", "num_bits", "strategy", "group_size", "symmetric")}
    found = ", ".join(f"{key} {value}" for key, value in {"format": form, **told}.items())
    allowed = "fp8, int4, mxfp4 and nvfp4, and int8 that is symmetric"
    raise _unsupported("compressed-tensors", f"{where}.weights", found, allowed)


def _read_quark(given: Config) -> PublishedQuantization:
    groups: list[tuple[tuple[str, ...], StoredLayout | None]] = []
    for pattern, spec in (given.get("layer_quant_config") or {}).items():
        groups.append(((pattern,), _quark_layout(f"layer_quant_config.{pattern}", spec)))
    _require("quark", given, "layer_type_quant_config", ({}, None))
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
    raise _unsupported(
        "quark", f"{where}.weight", found, "fp8_e4m3 and int8 per tensor or channel, fp4 per group of 32"
    )


def _read_modelopt(given: Config) -> PublishedQuantization:
    skipped = tuple(given.get("ignore") or given.get("exclude_modules") or ())
    layouts: Mapping[Any, StoredLayout] = {
        "NVFP4": Nvfp4Layout("weight", "weight_scale_2", divides=False),
        "FP8": Float8Layout(),
    }
    algorithm = given.get("quant_algo")
    if algorithm is None and declared_cache_scales(given):  # only the cache is quantized
        return PublishedQuantization("modelopt", (), dialect=BY_GLOB)
    if algorithm not in layouts:
        raise _unsupported("modelopt", "quant_algo", algorithm, ", ".join(layouts))
    return PublishedQuantization("modelopt", (((), layouts[algorithm]),), skipped, BY_GLOB)


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value)


def _group(method: str, field: str, size: Any) -> int | None:
    """Inputs that share a scale; -1 stands for a whole row."""
    if size in (None, -1):
        return None
    if type(size) is not int or size <= 0:
        raise _unsupported(method, field, size, "a number of inputs, and -1 for whole rows")
    return size


def _require(method: str, given: Config, key: str, allowed: Sequence[Any], also: str | None = None) -> None:
    value = given.get(key) if also is None else given.get(key, given.get(also))
    if value not in allowed:
        shown = ", ".join(str(one) for one in allowed if one is not None)
        raise _unsupported(method, key, value, shown or "nothing")


def _unsupported(method: str, field: str, value: Any, allowed: str) -> UnsupportedQuantizationError:
    return UnsupportedQuantizationError(
        f"the checkpoint is quantized as {method} with {field} {value!r}, which this version does not read; it reads "
        f"{allowed}. {_INSTEAD}"
    )


_READERS: Mapping[str, Callable[[Config], PublishedQuantization]] = {
    "fp8": _read_fp8,
    "fbgemm-fp8": _read_fbgemm,
    "compressed-tensors": _read_compressed_tensors,
    "quark": _read_quark,
    "awq": _read_awq,
    "gptq": _read_gptq,
    "auto-round": _read_auto_round,
    "mxfp4": _read_mxfp4,
    "bitsandbytes": _read_bitsandbytes,
    "modelopt": _read_modelopt,
}
