"""Reads the header of a GGUF file, trusting nothing in it; tensors come out as raw bytes. Torch-free."""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom_models.checkpoint.errors import CheckpointError

MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 4096
MAX_STRING_BYTES = 1 << 26

# type id -> (name, elements of a block, bytes of a block)
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
}
# value type id -> struct code of a fixed-size value
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GGUFTensor:
    """One tensor of the file: `shape` as torch has it (rows first), `offset` in bytes from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    offset: int
    num_bytes: int


class GGUFMetadata(Mapping[str, Any]):
    """Keys and values of the header; strings of long arrays are decoded when they are asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, _RawStrings):
            value = self._values[key] = [_text(raw) for raw in value.items]
        return value

    def positions(self, key: str, texts: Collection[str]) -> list[int]:
        """Where an array of strings holds one of `texts`; nothing is decoded for it."""
        value = self._values.get(key)
        items, wanted = (
            (value.items, {text.encode() for text in texts})
            if isinstance(value, _RawStrings)
            else (value or (), set(texts))
        )
        return [position for position, item in enumerate(items) if item in wanted]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True)
class GGUFFile:
    """A GGUF file whose header has been read and whose tensors are known to lie inside it."""

    path: Path
    version: int
    metadata: GGUFMetadata
    tensors: Mapping[str, GGUFTensor]
    buffer: mmap.mmap

    def read(self, tensor: GGUFTensor) -> memoryview:
        """The raw bytes of a tensor, not copied."""
        return memoryview(self.buffer)[tensor.offset : tensor.offset + tensor.num_bytes]


def read_gguf(path: str | Path) -> GGUFFile:
    """Reads the header of a GGUF file (versions 2 and 3, little-endian).

    Raises:
        CheckpointError: the file is missing, is no GGUF, or its header contradicts itself or the file's size.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except ValueError:
        raise CheckpointError(f"{path} is empty: download it again") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        return _parse(path, buffer)
    except CheckpointError as error:
        raise CheckpointError(f"{path} is not a usable GGUF file: {error}; download it again") from None


class _RawStrings:
    def __init__(self, items: list[bytes]) -> None:
        self.items = items


class _Cursor:
    """A position in the file; every read checks first that its bytes are there."""

    def __init__(self, buffer: mmap.mmap) -> None:
        self.buffer = buffer
        self.size = len(buffer)
        self.position = 0

    def take(self, num_bytes: int, what: str) -> int:
        start = self.position
        if num_bytes > self.size - start:
            raise CheckpointError(f"the file ends inside {what} (at byte {self.size})")
        self.position = start + num_bytes
        return start

    def scalar(self, code: str, what: str) -> Any:
        return struct.unpack_from("<" + code, self.buffer, self.take(struct.calcsize("<" + code), what))[0]

    def string(self, what: str) -> bytes:
        length = self.scalar("Q", what)
        if length > MAX_STRING_BYTES:
            raise CheckpointError(f"{what} claims a string of {length} bytes")
        start = self.take(length, what)
        return self.buffer[start : start + length]

    def count(self, what: str, least_bytes: int) -> int:
        """A count of things of at least that many bytes each, which must fit into what is left of the file."""
        count = self.scalar("Q", what)
        if count * least_bytes > self.size - self.position:
            raise CheckpointError(f"it claims {count} {what}, more than its {self.size} bytes can hold")
        return count


def _parse(path: Path, buffer: mmap.mmap) -> GGUFFile:
    cursor = _Cursor(buffer)
    if len(buffer) < 4 or buffer[:4] != b"GGUF":
        raise CheckpointError("it does not start with the letters GGUF")
    cursor.take(4, "its letters")
    version = cursor.scalar("I", "its version")
    if version not in (2, 3):
        kind = "big-endian" if version in (2 << 24, 3 << 24) else f"version {version}"
        raise CheckpointError(f"it is {kind}, and only little-endian versions 2 and 3 can be read")
    num_tensors = cursor.count("tensors", 32)
    num_keys = cursor.count("metadata keys", 13)
    values: dict[str, Any] = {}
    for _ in range(num_keys):
        key = _name(cursor.string("a metadata key"), "a metadata key")
        if key in values:
            raise CheckpointError(f"the metadata key {key!r} appears twice")
        values[key] = _value(cursor, cursor.scalar("I", f"the type of {key}"), key)
    infos = [_tensor_info(cursor) for _ in range(num_tensors)]
    start = _data_start(cursor, values.get("general.alignment", 32))
    tensors: dict[str, GGUFTensor] = {}
    for name, shape, type_name, offset, num_bytes in infos:
        if name in tensors:
            raise CheckpointError(f"the tensor {name!r} appears twice")
        if start + offset + num_bytes > cursor.size:
            raise CheckpointError(
                f"it ends at byte {cursor.size}, but the tensor {name} ends at byte {start + offset + num_bytes} "
                "(a broken download?)"
            )
        tensors[name] = GGUFTensor(name, shape, type_name, start + offset, num_bytes)
    return GGUFFile(path, version, GGUFMetadata(values), tensors, buffer)


def _value(cursor: _Cursor, value_type: int, key: str) -> Any:
    if value_type in _SCALARS:
        return cursor.scalar(_SCALARS[value_type], key)
    if value_type == _STRING:
        return _text(cursor.string(key))
    if value_type == _ARRAY:
        return _array(cursor, key)
    raise CheckpointError(f"the metadata key {key!r} has the unknown type {value_type}")


def _array(cursor: _Cursor, key: str) -> Any:
    item_type = cursor.scalar("I", key)
    if item_type in _SCALARS:
        code = _SCALARS[item_type]
        width = struct.calcsize("<" + code)
        count = cursor.count(f"values in {key}", width)
        return list(struct.unpack_from(f"<{count}{code}", cursor.buffer, cursor.take(count * width, key)))
    if item_type != _STRING:
        raise CheckpointError(f"the metadata key {key!r} is an array of the unsupported type {item_type}")
    count = cursor.count(f"strings in {key}", 8)
    items, buffer, position, size = [], cursor.buffer, cursor.position, cursor.size
    unpack = struct.Struct("<Q").unpack_from
    # The hot loop of a vocabulary: inlined reads, each still checked against the file's size.
    for _ in range(count):
        if position + 8 > size:
            raise CheckpointError(f"the file ends inside {key} (at byte {size})")
        end = position + 8 + unpack(buffer, position)[0]
        if end > size:
            raise CheckpointError(f"the file ends inside {key} (at byte {size})")
        items.append(buffer[position + 8 : end])
        position = end
    cursor.position = position
    return _RawStrings(items)


def _tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], str, int, int]:
    name = _name(cursor.string("a tensor's name"), "a tensor's name")
    num_dimensions = cursor.scalar("I", name)
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise CheckpointError(f"the tensor {name} claims {num_dimensions} dimensions")
    # The file lists the fastest dimension first; torch lists it last.
    shape = tuple(reversed([cursor.scalar("Q", name) for _ in range(num_dimensions)]))
    type_id, offset = cursor.scalar("I", name), cursor.scalar("Q", name)
    if type_id not in TENSOR_TYPES:
        raise CheckpointError(f"the tensor {name} has the unknown type {type_id}")
    type_name, block, block_bytes = TENSOR_TYPES[type_id]
    if 0 in shape or shape[-1] % block:
        raise CheckpointError(f"the tensor {name} {list(shape)} does not divide into blocks of {block} ({type_name})")
    return name, shape, type_name, offset, math.prod(shape) // block * block_bytes


def _data_start(cursor: _Cursor, alignment: Any) -> int:
    if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise CheckpointError(f"general.alignment is {alignment!r}, not a power of two up to {MAX_ALIGNMENT}")
    return -(-cursor.position // alignment) * alignment


def _name(raw: bytes, what: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise CheckpointError(f"{what} is not UTF-8: {raw[:40]!r}") from None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace")
