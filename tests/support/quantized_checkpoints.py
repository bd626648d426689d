"""Small checkpoints in published quantized layouts, and the plain ones that hold the same numbers.

The bytes are those that the formats' own libraries write: `tests` of layouts hold the reading to these libraries.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset, Plain, WeightFormat, unpack_nibbles

Tensors = dict[str, torch.Tensor]
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Published:
    """One published layout.

    Attributes:
        weight_format: the format of the numbers.
        store: the format's tensors -> those of the file, by what follows the layer's name.
        config: the `quantization_config`.
        skipped: parts of names of layers that stay plain.
        group: inputs must be a multiple of it.
    """

    weight_format: WeightFormat
    store: Callable[[Tensors], Tensors]
    config: Mapping[str, Any]
    skipped: tuple[str, ...] = ("lm_head", "embed_tokens", "mlp.gate.", "router")
    group: int = 1

    def takes(self, name: str, weight: torch.Tensor) -> bool:
        is_matrix = name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"))
        return is_matrix and weight.dim() == 2 and not any(part in name for part in self.skipped)

    def write(self, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        """A matrix in this layout, and its numbers."""
        if weight.shape[1] % self.group:
            raise ValueError(f"{list(weight.shape)} has no whole groups of {self.group}")
        parts = self.weight_format.quantize(weight)
        numbers = self.weight_format.dequantize(parts, weight.shape[1])
        return {name: tensor.contiguous() for name, tensor in self.store(parts).items()}, numbers


NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)


@dataclass(frozen=True)
class Bitsandbytes(Published):
    """Its blocks of 64 weights follow each other over the rows, and may have scales that are rounded themselves."""

    nested: bool = False

    def write(self, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        table, count = torch.tensor(NF4), weight.numel()
        blocks = torch.nn.functional.pad(weight.flatten().float(), (0, -count % 64)).view(-1, 64)
        absmax = blocks.abs().amax(1)
        state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
        stored = {"weight.absmax": absmax, "weight.quant_map": table}
        if self.nested:
            offset, levels = absmax.mean().item(), torch.linspace(-1, 1, 256)
            largest = (absmax - offset).abs().max() + 1e-6
            codes = ((absmax - offset) / largest * 127.5 + 127.5).round()
            absmax = levels[codes.int()] * largest + offset
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            stored |= {
                "weight.absmax": codes.to(torch.uint8),
                "weight.nested_absmax": largest.expand(-(-len(absmax) // 256)).contiguous(),
                "weight.nested_quant_map": levels,
            }
        codes = (blocks / absmax[:, None]).unsqueeze(-1).sub(table).abs().argmin(-1)
        values = (table[codes] * absmax[:, None]).flatten()[:count].view_as(weight)
        flat = codes.to(torch.uint8).flatten()[: count + count % 2]
        stored["weight"] = (flat[::2] << 4 | flat[1::2]).view(-1, 1)
        blob = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        return stored | {"weight.quant_state.bitsandbytes__nf4": blob}, values


def write_quantized(folder: Path, plain: Path, published: Published, **changes: Any) -> tuple[Path, Path]:
    """The checkpoint `plain` in a layout, and a plain one of the same numbers: (quantized, its twin)."""
    quantized, twin = folder / "quantized", folder / "twin"
    for copy in (quantized, twin):
        shutil.copytree(plain, copy)
    stored: Tensors = {}
    exact = load_file(plain / "model.safetensors")
    for name, weight in list(exact.items()):
        if not published.takes(name, weight):
            stored[name] = weight
            continue
        tensors, exact[name] = published.write(weight)
        stored |= {f"{name.removesuffix('weight')}{suffix}": tensor for suffix, tensor in tensors.items()}
    save_file(stored, quantized / "model.safetensors")
    save_file(exact, twin / "model.safetensors")
    set_config(quantized, quantization_config=dict(published.config), **changes)
    set_config(twin, **changes)
    return quantized, twin


def write_gpt_oss(folder: Path, plain: Path) -> tuple[Path, Path]:
    """GPT-OSS with experts in mxfp4: their inputs come last there, and first in the plain checkpoint."""
    quantized, twin = folder / "quantized", folder / "twin"
    for copy in (quantized, twin):
        shutil.copytree(plain, copy)
    exact = load_file(plain / "model.safetensors")
    stored = dict(exact)
    for name, weight in list(exact.items()):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            parts = Mxfp4().quantize(weight.transpose(1, 2))
            exact[name] = Mxfp4().dequantize(parts, weight.shape[1]).transpose(1, 2).contiguous()
            del stored[name]
            stored[f"{name}_blocks"] = parts["weight"].unflatten(-1, (-1, 16)).contiguous()
            stored[f"{name}_scales"] = parts["scale"]
    save_file(stored, quantized / "model.safetensors")
    save_file(exact, twin / "model.safetensors")
    skipped = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    set_config(quantized, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": skipped})
    return quantized, twin


def set_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def words(codes: torch.Tensor, order: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """``uint8 [..., 8 n]`` of 0 to 15 -> int32 [..., n]; bits 4 i to 4 i + 3 of a word hold its column ``order[i]``."""
    columns = codes.to(torch.int64).unflatten(-1, (-1, 8))
    packed = sum(columns[..., column] << 4 * place for place, column in enumerate(order))
    assert isinstance(packed, torch.Tensor)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def _compressed(form: str, *, inputs: str | None = None, **weights: Any) -> dict[str, Any]:
    """`inputs` is the type of eight bits to which rows are rounded; by default that of weights of eight bits."""
    inputs = inputs or (weights["type"] if weights["num_bits"] == 8 else None)
    rounded = {"num_bits": 8, "type": inputs, "strategy": "token", "dynamic": True, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {"symmetric": True, "dynamic": False} | weights,
        "input_activations": None if inputs is None else rounded,
    }
    ignore = ["lm_head", "re:.*mlp.gate$"]
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}, "ignore": ignore}


def _pack_compressed(parts: Tensors) -> Tensors:
    codes = unpack_nibbles(parts["weight"])
    stored = {
        "weight_packed": words(codes),
        "weight_scale": parts["scale"],
        "weight_shape": torch.tensor(codes.shape),
    }
    if "zero_point" in parts:
        stored["weight_zero_point"] = words(parts["zero_point"].t()).t()
    return stored


def _pack_awq(parts: Tensors) -> Tensors:
    return {
        "qweight": words(unpack_nibbles(parts["weight"]).t(), _AWQ_ORDER),
        "qzeros": words(parts["zero_point"].t(), _AWQ_ORDER),
        "scales": parts["scale"].t(),
    }


def _pack_gptq(parts: Tensors) -> Tensors:
    codes = unpack_nibbles(parts["weight"])
    zeros = parts.get("zero_point", torch.full_like(parts["scale"], 8).to(torch.uint8))
    return {
        "qweight": words(codes).t(),
        "qzeros": words(((zeros + 15) % 16).t()),
        "scales": parts["scale"].t(),
        "g_idx": torch.arange(codes.shape[1], dtype=torch.int32) // (codes.shape[1] // parts["scale"].shape[1]),
    }


def _as_named(**names: str) -> Callable[[Tensors], Tensors]:
    return lambda parts: {names.get(name, name): tensor for name, tensor in parts.items()}


@dataclass(frozen=True)
class _WholeTensor(Float8):
    """fp8 with one scale for the whole matrix, as static checkpoints have it."""

    largest: float = field(default=448.0)

    def quantize(self, weight: torch.Tensor) -> Tensors:
        scale = weight.abs().max() / self.largest
        values = (weight / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        return {"weight": values, "scale": scale.expand(weight.shape[0], 1)}


_FLOAT8 = {"num_bits": 8, "type": "float"}
_INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
_TILED = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
_QUARK_FP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}

PUBLISHED: Mapping[str, Published] = {
    "fp8 tiles": Published(Float8(128, 128), _as_named(scale="weight_scale_inv"), _TILED),
    "fp8 rows": Published(
        Float8(), _as_named(scale="weight_scale"), _compressed("float-quantized", **_FLOAT8, strategy="channel")
    ),
    "fp8 tensors": Published(
        _WholeTensor(),
        lambda parts: {
            "weight": parts["weight"],
            "weight_scale": parts["scale"][0, 0],
            "input_scale": torch.tensor(0.5),
        },
        {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
    ),
    "int8 rows": Published(
        Integers(8),
        _as_named(scale="weight_scale"),
        _compressed("int-quantized", num_bits=8, type="int", strategy="channel"),
    ),
    "int8 packed": Published(
        Integers(8),
        lambda parts: {
            "weight_packed": (parts["weight"].view(torch.uint8) ^ 128).view(torch.int32),
            "weight_scale": parts["scale"],
            "weight_shape": torch.tensor(parts["weight"].shape),
        },
        _compressed("pack-quantized", num_bits=8, type="int", strategy="channel"),
        group=4,
    ),
    "int4 rows": Published(
        Integers(4, scale_dtype=torch.bfloat16),
        _pack_compressed,
        _compressed("pack-quantized", num_bits=4, type="int", strategy="channel", inputs="float"),
    ),
    "int4 packed": Published(
        Integers(4, 32, scale_dtype=torch.bfloat16), _pack_compressed, _compressed("pack-quantized", **_INT4), group=32
    ),
    "int4 packed with zeros": Published(
        Integers(4, 32, Offset.ZERO_POINT, torch.bfloat16),
        _pack_compressed,
        _compressed("pack-quantized", **_INT4, symmetric=False),
        group=32,
    ),
    "awq": Published(
        Integers(4, 32, Offset.ZERO_POINT, torch.float16),
        _pack_awq,
        {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
        group=32,
    ),
    "gptq": Published(
        Integers(4, 32, Offset.ZERO_POINT, torch.float16),
        _pack_gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False},
        group=32,
    ),
    "auto-round": Published(
        Integers(4, 32, Offset.ZERO_POINT, torch.float16),
        _pack_gptq,
        {
            "quant_method": "auto-round",
            "packing_format": "auto_round:auto_gptq",
            "bits": 4,
            "group_size": 32,
            "sym": False,
            "data_type": "int",
            "block_name_to_quantize": "model.layers",
            "extra_config": {"model.layers.0.mlp.gate": {"bits": 16, "data_type": "float"}},
        },
        group=32,
    ),
    "gptq sorted": Published(
        Integers(4, 32, scale_dtype=torch.float16),
        _pack_gptq,
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": True},
        group=32,
    ),
    "mxfp4": Published(
        Mxfp4(),
        _as_named(scale="weight_scale"),
        {
            "quant_method": "quark",
            "global_quant_config": {
                "weight": _QUARK_FP4 | {"is_dynamic": False},
                "input_tensors": _QUARK_FP4 | {"is_dynamic": True},
                "output_tensors": None,
                "bias": None,
            },
            "layer_quant_config": {},
            "layer_type_quant_config": {},
            "exclude": ["lm_head"],
            "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
        },
        group=32,
    ),
    "nf4": Bitsandbytes(
        Plain(torch.float32),
        dict,
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": False,
        },
        nested=False,
    ),
    "nf4 nested": Bitsandbytes(
        Plain(torch.float32),
        dict,
        {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
        },
        nested=True,
    ),
    "nvfp4": Published(
        Nvfp4(),
        lambda parts: {
            "weight": parts["weight"],
            "weight_scale": parts["scale"],
            "weight_scale_2": parts["tensor_scale"][0, 0],
        },
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
        group=16,
    ),
}


def change(folder: Path, rename: dict[str, str | None] | None = None, **tensors: torch.Tensor) -> None:
    """Renames tensors of a checkpoint, leaves out those whose new name is None, and puts others into it."""
    weights = load_file(folder / "model.safetensors") | tensors
    for old, new in (rename or {}).items():
        tensor = weights.pop(old)
        if new is not None:
            weights[new] = tensor
    save_file(weights, folder / "model.safetensors")


# Families that are held quantized in tests of what changes no token, by a label of each.
QUANTIZED_FAMILIES = {
    "llama in int4": ("llama", "int4 packed"),
    "qwen3_moe in fp8 tiles": ("qwen3_moe", "fp8 tiles"),
    "deepseek_v3 in fp8 tiles": ("deepseek_v3", "fp8 tiles"),
}


def write_family(label: str, folder: Path, make: Callable[[str], Path]) -> Path:
    """The checkpoint of a family, or of one of `QUANTIZED_FAMILIES`.

    Args:
        folder: where it is written.
        make: a family -> its plain checkpoint.
    """
    if label not in QUANTIZED_FAMILIES:
        return make(label)
    family, name = QUANTIZED_FAMILIES[label]
    return write_quantized(folder, make(family), PUBLISHED[name])[0]


def plain_twin(folder: Path) -> Path:
    """A plain checkpoint of the numbers of one that `write_family` wrote."""
    return folder.parent / "twin" if folder.name == "quantized" else folder
