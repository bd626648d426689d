"""The process that runs code of a folder: `python -m atom_core.folder_code.converting FOLDER TARGET`.

What the code finds is written to TARGET as data: `config.json`, `tokenizer.json` and `tokenizer_config.json`, and in
`code_that_ran.json` the files that ran. The last line on standard error says why, where it cannot be done.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from atom_core.folder_code.references import (
    CONFIG,
    TOKENIZER,
    CodeReference,
    CodeReferenceError,
    auto_map_of,
    check_no_model_code,
    find_reference,
    read_object,
)
from atom_core.garbage import kept_for_good
from atom_core.tokenization import TokenizerError
from atom_core.tokenization.hf_folder import SPECIAL_ROLES, tokenizer_from_folder

RAN = "code_that_ran.json"


def convert(folder: Path, target: Path) -> None:
    """Runs what `auto_map` names for the configuration, and for a tokenizer that is not read without it.

    Raises:
        CodeReferenceError: it is not there, imports code of a model, or gives what is not read here.
    """
    auto_map = auto_map_of(folder)
    config = find_reference(folder, auto_map, CONFIG)
    tokenizer = None if _reads_tokenizer(folder) else find_reference(folder, auto_map, TOKENIZER)
    references = [one for one in (config, tokenizer) if one is not None]
    files = _files_of(folder, references)
    check_no_model_code(files, auto_map)
    if config is not None:
        _write(target / "config.json", _fields(_load(folder, config), read_object(folder / "config.json")))
    if tokenizer is not None:
        _convert_tokenizer(_load(folder, tokenizer), tokenizer, folder, target)
    _write(target / RAN, files)


def _reads_tokenizer(folder: Path) -> bool:
    try:
        tokenizer_from_folder(folder)
    except TokenizerError:
        return False
    return True


def _files_of(folder: Path, references: list[CodeReference]) -> list[str]:
    """The files in which the classes are, and what these import of the folder."""
    from transformers.dynamic_module_utils import get_relative_import_files

    names: dict[str, None] = {}
    for reference in references:
        imported = get_relative_import_files(folder / reference.file)
        names |= dict.fromkeys([reference.file, *(str(Path(one).relative_to(folder)) for one in imported)])
    return list(names)


def _load(folder: Path, reference: CodeReference) -> Any:
    """What the class reads from the folder."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    found: Any = get_class_from_dynamic_module(str(reference), str(folder), local_files_only=True)
    return found.from_pretrained(str(folder), local_files_only=True)


def _fields(config: Any, stated: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration: what its file states stays, and what its class knows comes beside it."""
    aliases = {name: getattr(config, name, None) for name in config.attribute_map}
    known = {name: value for name, value in {**aliases, **config.to_dict()}.items() if value is not None}
    return {name: value for name, value in {**known, **stated}.items() if name != "auto_map"}


def _convert_tokenizer(tokenizer: Any, reference: CodeReference, folder: Path, target: Path) -> None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise CodeReferenceError(
            f"{reference} is a tokenizer in Python alone, and only what stands over the library `tokenizers` can be "
            "served: give a folder with a tokenizer.json by --tokenizer, or token ids with --skip-tokenizer-init"
        )
    backend.save(str(target / "tokenizer.json"))
    special = {role: str(token) for role in SPECIAL_ROLES if (token := getattr(tokenizer, role, None)) is not None}
    template = {} if tokenizer.chat_template is None else {"chat_template": tokenizer.chat_template}
    stated = read_object(folder / "tokenizer_config.json")
    _write(target / "tokenizer_config.json", {**template, **stated, **special, "auto_map": {}})


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def main() -> int:
    """Convert the folder of the command line; the reason of a failure is the last line of standard error."""
    try:
        with kept_for_good():  # the process ends right after
            convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:  # whatever code of a stranger raises
        text = " ".join(str(error).split())
        print(text if isinstance(error, CodeReferenceError) else f"{type(error).__name__}: {text}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
