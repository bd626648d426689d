"""Configs of AWQ, GPTQ and AutoRound, whose checkpoints pack codes of four bits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from atom_models.quantization.layouts import AwqLayout, GptqLayout, StoredLayout
from atom_models.quantization.published.fields import Config, group_size, require, unsupported
from atom_models.quantization.published.names import BY_PART, BY_SIGN
from atom_models.quantization.published.published_quantization import PublishedQuantization

# Whose tensors AutoRound writes, by what it calls their packing.
_AUTO_ROUND: Mapping[Any, str] = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}


def read_awq(given: Config) -> PublishedQuantization:
    """All linears have one layout, but those that the config leaves out, and the head."""
    require("awq", given, "bits", (4,), "w_bit")
    require("awq", given, "version", ("gemm", "GEMM", None))
    require("awq", given, "zero_point", (True, None))
    layout = AwqLayout(group_size("awq", "group_size", given.get("group_size", given.get("q_group_size"))))
    skipped = tuple(given.get("modules_to_not_convert") or ())
    return PublishedQuantization("awq", (((), layout),), (*skipped, "lm_head"), BY_PART)


def read_gptq(given: Config) -> PublishedQuantization:
    """The first rule of `dynamic` that means a layer changes fields for it, or leaves it out."""
    require("gptq", given, "checkpoint_format", ("gptq", "gptq_v2", None))
    dynamic = given.get("dynamic") or {}
    if not isinstance(dynamic, Mapping) or not all(isinstance(changes, Mapping) for changes in dynamic.values()):
        raise unsupported("gptq", "dynamic", dynamic, "rules with what they change")
    groups: list[tuple[tuple[str, ...], StoredLayout | None]] = []
    for rule, changes in dynamic.items():
        left_out = rule.startswith("-:")
        groups.append(((rule,), None if left_out else _gptq_layout({**given, **changes}, f"dynamic.{rule}.")))
    if not given.get("lm_head"):
        groups.append((("lm_head",), None))
    return PublishedQuantization("gptq", (*groups, ((), _gptq_layout(given))), dialect=BY_SIGN)


def _gptq_layout(given: Config, where: str = "") -> StoredLayout:
    if given.get("bits") != 4:
        raise unsupported("gptq", f"{where}bits", given.get("bits"), "4")
    zeros_less_one = given.get("checkpoint_format") != "gptq_v2"
    group = group_size("gptq", f"{where}group_size", given.get("group_size"))
    return GptqLayout(group, zeros_less_one, bool(given.get("sym", True)), bool(given.get("desc_act")))


def read_auto_round(given: Config) -> PublishedQuantization:
    """AutoGPTQ's or AutoAWQ's tensors; `extra_config` changes fields for layers, or leaves them out with 16 bits."""
    method, changes = "auto-round", given.get("extra_config") or {}
    require(method, given, "packing_format", tuple(_AUTO_ROUND))
    require(method, given, "data_type", ("int", None))
    if not isinstance(changes, Mapping) or not all(isinstance(one, Mapping) for one in changes.values()):
        raise unsupported(method, "extra_config", changes, "layers with what they change")
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
        raise unsupported("auto-round", f"{where}bits", bits, "4, and 16 for layers that are left out")
    group = group_size("auto-round", f"{where}group_size", given.get("group_size"))
    if _AUTO_ROUND[given.get("packing_format")] == "awq":
        return AwqLayout(group)
    return GptqLayout(group, symmetric=bool(given.get("sym", True)))
