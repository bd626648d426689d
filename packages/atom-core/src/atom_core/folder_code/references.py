"""Which classes of a folder read its configuration and tokenizer, and in which of its files they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG, TOKENIZER = "AutoConfig", "AutoTokenizer"


class CodeReferenceError(ValueError):
    """An `auto_map` that names no file of the folder, or code of a model."""


@dataclass(frozen=True)
class CodeReference:
    """A class in a file of the folder.

    Attributes:
        module, name: the file without its ending, and the class in it.
    """

    module: str
    name: str

    @property
    def file(self) -> str:
        return f"{self.module}.py"

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is no file or none in it."""
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def auto_map_of(folder: Path) -> dict[str, Any]:
    """`auto_map` of `config.json` and of `tokenizer_config.json`, whose word goes first."""
    maps = [read_object(folder / name).get("auto_map") for name in ("config.json", "tokenizer_config.json")]
    return {name: value for found in maps if isinstance(found, dict) for name, value in found.items()}


def find_reference(folder: Path, auto_map: Mapping[str, Any], what: str) -> CodeReference | None:
    """The class that `auto_map` names for `what`; None where it names none.

    Raises:
        CodeReferenceError: it is not in a file of the folder.
    """
    named = auto_map.get(what)
    if isinstance(named, list):  # a tokenizer in Python alone, and one over the library `tokenizers`
        named = next((one for one in reversed(named) if one), None)
    if named is None:
        return None
    module, dot, name = str(named).rpartition(".")
    if "--" in str(named):
        raise CodeReferenceError(f"auto_map has {named!r} for {what}: code of another repository is never run")
    if not (dot and module.isidentifier() and name.isidentifier()):
        raise CodeReferenceError(f"auto_map has {named!r} for {what}, and not a file and a class in it (FILE.CLASS)")
    reference = CodeReference(module, name)
    if not (folder / reference.file).is_file():
        raise CodeReferenceError(f"auto_map has {named!r} for {what}, and there is no {reference.file} in {folder}")
    return reference


def check_no_model_code(files: Iterable[str], auto_map: Mapping[str, Any]) -> None:
    """Refuses files that are a model's code: those of other classes of `auto_map`, and all that are named so.

    Raises:
        CodeReferenceError: it names the file.
    """
    others = {str(value).partition(".")[0] for name, value in auto_map.items() if name.startswith("AutoModel")}
    for file in files:
        module = file.removesuffix(".py")
        if module in others or module.startswith("modeling_"):
            raise CodeReferenceError(f"{file} is code of a model, which is never run, and it would be imported")
