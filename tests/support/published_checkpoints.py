"""Checkpoints without their numbers: config, and the name, shape and dtype of every tensor.

Names are written as their publishers' exporters make them, with ``{0..31}`` and ``{q,o}`` in the place of lists; shapes
of scales follow from the layouts. Files are as large as the real ones and hold nothing, so that they take no room on a
disk.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from published_configs import FOLDER

_SHARD_BYTES = 4_000_000_000
# What follows a linear's name: dtype, and shape for N outputs and K inputs.
Layout = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class PublishedCheckpoint:
    """One of them.

    Attributes:
        config: the one of `published_configs` whose architecture it has.
        linears: name -> (outputs, inputs, layout).
        others: name -> (dtype, shape).
        quantization: the `quantization_config`; nothing leaves what the config says, if it says anything.
        changes: other fields that differ from the config's; None for those that are not there.
        passed_over: names of tensors that nothing needs.
        formats: what its matrices hold, as layouts call it.
        changed: tensors that a test has otherwise, by full name; None for those that are not there.
    """

    config: str
    linears: Mapping[str, tuple[int, int, Layout]]
    others: Mapping[str, tuple[str, str]]
    quantization: Mapping[str, Any]
    formats: frozenset[str]
    changes: Mapping[str, Any] = field(default_factory=dict)
    passed_over: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, tuple[int, ...]] | None] = field(default_factory=dict)

    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Every tensor: dtype, as safetensors spells it, and shape."""
        found = {}
        for pattern, (rows, columns, layout) in self.linears.items():
            stored = {suffix: (dtype, _shape(shape, rows, columns)) for suffix, (dtype, shape) in layout.items()}
            for name in expand(pattern):
                found |= {f"{name}.{suffix}": one for suffix, one in stored.items()}
        for pattern, (dtype, shape) in self.others.items():
            found |= dict.fromkeys(expand(pattern), (dtype, _shape(shape, 0, 0)))
        return {name: one for name, one in (found | dict(self.changed)).items() if one is not None}

    def first_layers(self, count: int) -> PublishedCheckpoint:
        """The same model with so many layers, and none that predict further tokens."""

        def cut(pattern: str) -> list[str]:
            return [name for name in expand(pattern) if _layer_id(name) < count]

        return replace(
            self,
            changes={**self.changes, "num_hidden_layers": count, "num_nextn_predict_layers": 0},
            linears={name: one for pattern, one in self.linears.items() for name in cut(pattern)},
            others={name: one for pattern, one in self.others.items() for name in cut(pattern)},
            passed_over=tuple(name for pattern in self.passed_over for name in cut(pattern)),
        )

    def few_experts(self, count: int) -> PublishedCheckpoint:
        """The same model with so many experts in each layer, where its config has `n_routed_experts`."""
        total = json.loads((FOLDER / f"{self.config}.json").read_text())["n_routed_experts"]

        def cut(pattern: str) -> str:
            return pattern.replace(f"experts.{{0..{total - 1}}}", f"experts.{{0..{count - 1}}}")

        def shape_of(pattern: str, shape: str) -> str:
            return shape.replace(str(total), str(count)) if ".mlp.gate." in pattern else shape

        return replace(
            self,
            changes={**self.changes, "n_routed_experts": count},
            linears={cut(pattern): one for pattern, one in self.linears.items()},
            others={pattern: (dtype, shape_of(pattern, shape)) for pattern, (dtype, shape) in self.others.items()},
        )

    def write_config(self, folder: Path) -> Path:
        """A folder with the config alone."""
        config = json.loads((FOLDER / f"{self.config}.json").read_text()) | dict(self.changes)
        config = {name: value for name, value in config.items() if value is not None or name not in self.changes}
        if self.quantization:
            config["quantization_config"] = dict(self.quantization)
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    def write(self, folder: Path) -> Path:
        """A folder with the config and files of that size."""
        self.write_config(folder)
        shards: list[dict[str, Any]] = [{}]
        end = 0
        for name, (dtype, shape) in self.tensors().items():
            begin, end = end, end + _num_bytes(dtype, shape)
            if shards[-1] and end > _SHARD_BYTES:
                shards.append({})
                begin, end = 0, end - begin
            shards[-1][name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        placed = {}
        for number, header in enumerate(shards, 1):
            file = folder / f"model-{number:05}-of-{len(shards):05}.safetensors"
            _write_shard(file, header)
            placed |= dict.fromkeys(header, file.name)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
        return folder


def _write_shard(file: Path, header: Mapping[str, Any]) -> None:
    text = json.dumps(header).encode()
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.truncate(8 + len(text) + max(tensor["data_offsets"][1] for tensor in header.values()))


def expand(pattern: str) -> Iterator[str]:
    """All names that a pattern stands for."""
    match = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]+))\}", pattern)
    if match is None:
        yield pattern
        return
    first, last, words = match.groups()
    choices = words.split(",") if words else map(str, range(int(first), int(last) + 1))
    for choice in choices:
        yield from expand(pattern[: match.start()] + choice + pattern[match.end() :])


def _layer_id(name: str) -> int:
    """-1 for what belongs to no layer."""
    found = re.match(r"model\.layers\.(\d+)\.", name)
    return int(found[1]) if found else -1


def _shape(text: str, rows: int, columns: int) -> tuple[int, ...]:
    """``"N K/128"`` in numbers; what is divided is rounded up."""
    sizes = {"N": rows, "K": columns}

    def size_of(part: str) -> int:
        name, _, divisor = part.partition("/")
        return -(-(sizes[name] if name in sizes else int(name)) // int(divisor or 1))

    return tuple(map(size_of, text.split()))


def _num_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * {"F8_E4M3": 1, "I8": 1, "U8": 1, "BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}[dtype]
