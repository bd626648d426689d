"""Tensors of a folder of safetensors files, one at a time, mapped from disk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from atom_models.checkpoint import CheckpointError
from atom_models.checkpoint.weight_names import DECODER_PREFIX, INDEX, is_decoder_alone
from atom_models.quantization.published.headers import Header, Headers

# As headers of safetensors spell them.
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class SafetensorsSource:
    """The weights of a checkpoint folder.

    Attributes:
        files: the files that are read, in order.
        placed: tensor name -> file by the index; None for a single file.
    """

    files: tuple[Path, ...]
    placed: dict[str, Path] | None = None

    @cached_property
    def prefix(self) -> str:
        """What comes before the stored names: a decoder that was saved by itself leaves its own name out."""
        return DECODER_PREFIX if is_decoder_alone(frozenset(self._stored)) else ""

    @property
    def num_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def names(self) -> frozenset[str]:
        """Names of all tensors in a causal language model."""
        return frozenset(self.prefix + name for name in self._stored)

    def headers(self) -> Headers:
        """Shapes and dtypes of all tensors; no tensor is read."""
        return Headers({self.prefix + name: header for name, (_, header) in self._stored.items()})

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Those tensors in that order. A file is mapped from its first tensor to its last one among them."""
        stored = [name.removeprefix(self.prefix) for name in names]
        left = Counter(self._stored[name][0] for name in stored)
        with ExitStack() as all_files:
            opened: dict[Path, tuple[ExitStack, Any]] = {}
            for name in stored:
                file = self._stored[name][0]
                if file not in opened:
                    own = all_files.enter_context(ExitStack())
                    opened[file] = own, own.enter_context(_open_file(file))
                yield self.prefix + name, opened[file][1].get_tensor(name)
                left[file] -= 1
                if not left[file]:
                    opened.pop(file)[0].close()

    @cached_property
    def _stored(self) -> dict[str, tuple[Path, Header]]:
        """What the headers of all files say, by the names in there."""
        indexed: dict[Path, set[str]] = {}
        for name, file in (self.placed or {}).items():
            indexed.setdefault(file, set()).add(name)
        found: dict[str, tuple[Path, Header]] = {}
        for file in self.files:
            with _open_file(file) as tensors:
                names = frozenset(tensors.keys())
                absent = indexed.get(file, set()) - names
                if absent:
                    raise CheckpointError(f"{file} lacks {min(absent)}, which the index says is in it")
                for name in sorted(names):
                    if name in found:
                        raise CheckpointError(f"{file} holds the weight {name}, which is in {found[name][0]} already")
                    part = tensors.get_slice(name)
                    found[name] = file, read_header(f"{file}: {name}", part.get_dtype(), part.get_shape())
        return found


@contextmanager
def _open_file(file: Path) -> Iterator[Any]:
    """The file's tensors by name; what is wrong with the file becomes a CheckpointError."""
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except SafetensorError as error:
        reason = str(error).removeprefix("Error while deserializing header: ")
        raise CheckpointError(
            f"{file} is not a usable safetensors file ({reason}): it is damaged or incomplete, download it again"
        ) from None
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from None


def open_safetensors(folder: Path) -> SafetensorsSource:
    """Finds the weights of a folder: by the index if there is one, else a single file.

    Raises:
        CheckpointError: there are none, the index is damaged or names files that are not there, or the weights come in
            a format that can run code when it is read.
    """
    if (folder / INDEX).is_file():
        return _open_index(folder)
    if (folder / "model.safetensors").is_file():
        return SafetensorsSource((folder / "model.safetensors",))
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return SafetensorsSource((files[0],))
    if files:
        raise CheckpointError(f"{folder} has {len(files)} safetensors files but no {INDEX} that says what is in them")
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    if pickled:
        raise CheckpointError(
            f"{folder} has only pickled weights ({pickled[0]}), which are never loaded because they can run code: "
            "convert them with transformers' save_pretrained (safetensors)"
        )
    raise CheckpointError(f"{folder} has no weights: expected model.safetensors or {INDEX}")


def _open_index(folder: Path) -> SafetensorsSource:
    path = folder / INDEX
    try:
        weight_map = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        names = {name: str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError) as error:
        raise CheckpointError(f"{path} is not a usable index: {type(error).__name__} {error}") from None
    files = {file: folder / file for file in sorted(set(names.values()))}
    for file, place in files.items():
        if file != Path(file).name:
            raise CheckpointError(f"{path} points outside its folder: {file!r}")
        if not place.is_file():
            raise CheckpointError(f"{folder} lacks {file}, which {INDEX} names: the download is incomplete")
    return SafetensorsSource(tuple(files.values()), {name: files[file] for name, file in names.items()})


def read_header(name: str, dtype: str, shape: Sequence[int]) -> Header:
    """What the header of a safetensors file says of a tensor; raises CheckpointError, naming the tensor."""
    if dtype not in _DTYPES:
        raise CheckpointError(f"{name} is {dtype}, which torch cannot hold")
    return Header(tuple(shape), _DTYPES[dtype])


def read_headers(folder: Path) -> Headers | None:
    """Shapes and dtypes of a folder's tensors; None where there are no weights, as where a model is only planned.

    Raises:
        CheckpointError: a file is damaged, or an index names one that is not there.
    """
    if not (folder / INDEX).is_file() and not any(folder.glob("*.safetensors")):
        return None
    return open_safetensors(folder).headers()
