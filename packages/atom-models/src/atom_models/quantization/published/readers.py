"""What a published `quantization_config` says: its method has a reader, which gives the layouts of the layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError, quantization_method
from atom_models.quantization.layouts import (
    Bitsandbytes4Layout,
    Float8Layout,
    Int8Layout,
    Mxfp4BlocksLayout,
    Nvfp4Layout,
    StoredLayout,
)
from atom_models.quantization.published.cache_scales import declared_cache_scales
from atom_models.quantization.published.compressed_tensors import read_compressed_tensors
from atom_models.quantization.published.fields import INSTEAD, Config, is_pair, require, unsupported
from atom_models.quantization.published.names import BY_GLOB
from atom_models.quantization.published.packed_int4 import read_auto_round, read_awq, read_gptq
from atom_models.quantization.published.published_quantization import PublishedQuantization
from atom_models.quantization.published.quark import read_quark


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
            f"{', '.join(_READERS)}. {INSTEAD}"
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
    elif is_pair(block):
        layout = Float8Layout((block[0], block[1]), "weight_scale_inv")
    else:
        raise unsupported("fp8", "weight_block_size", block, "two numbers")
    require("fp8", given, "fmt", ("e4m3", "float8_e4m3fn", None))
    require("fp8", given, "activation_scheme", ("dynamic", "static", None))
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
        require("bitsandbytes", given, "load_in_4bit", (True,))
        require("bitsandbytes", given, "bnb_4bit_quant_type", ("nf4", "fp4", None))
        require("bitsandbytes", given, "bnb_4bit_quant_storage", ("uint8", None))
        kind = given.get("bnb_4bit_quant_type") or "fp4"
        layout = Bitsandbytes4Layout(kind, nested=bool(given.get("bnb_4bit_use_double_quant")))
    return PublishedQuantization("bitsandbytes", (((), layout),), skipped)


def _read_mxfp4(given: Config) -> PublishedQuantization:
    skipped = tuple(given.get("modules_to_not_convert") or ())
    return PublishedQuantization("mxfp4", (((), Mxfp4BlocksLayout()),), (*skipped, "lm_head"))


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
        raise unsupported("modelopt", "quant_algo", algorithm, ", ".join(layouts))
    return PublishedQuantization("modelopt", (((), layouts[algorithm]),), skipped, BY_GLOB)


_READERS: Mapping[str, Callable[[Config], PublishedQuantization]] = {
    "fp8": _read_fp8,
    "fbgemm-fp8": _read_fbgemm,
    "compressed-tensors": read_compressed_tensors,
    "quark": read_quark,
    "awq": read_awq,
    "gptq": read_gptq,
    "auto-round": read_auto_round,
    "mxfp4": _read_mxfp4,
    "bitsandbytes": _read_bitsandbytes,
    "modelopt": _read_modelopt,
}
