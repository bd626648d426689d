"""`as_data`: a folder with what a model's own code says of it, as data."""

from __future__ import annotations

import atexit
import json
import logging
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from atom_core import settings
from atom_core.config.options import ConfigError
from atom_core.folder_code.converting import RAN

logger = logging.getLogger(__name__)

# Seconds until code that does not end is ended.
TIME_LIMIT = 300
# Nothing is fetched, and only what went wrong is printed.
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


class FolderCodeError(ConfigError):
    """Code of a folder that cannot be run, or does not give a configuration and a tokenizer."""


def as_data(folder: Path) -> Path:
    """A folder for `folder`, with its configuration and tokenizer as its own code reads them; removed at exit.

    Other files are links to those of `folder`, but for Python, which is left out. The code runs in a process of its
    own, which has ended when this returns, and which fetches nothing.

    Raises:
        FolderCodeError: `folder` is none, transformers is not installed, or the code fails; the message says why.
    """
    folder = folder.resolve()
    if not (folder / "config.json").is_file():
        raise FolderCodeError(
            f"trust_remote_code runs code of a local folder, and {folder} has no config.json: leave it out"
        )
    if find_spec("transformers") is None:
        raise FolderCodeError("trust_remote_code needs transformers: pip install 'transformers>=5.23', or leave it out")
    made = Path(tempfile.mkdtemp(prefix="atom-folder-code-"))  # mode 0700
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    target = made / folder.name
    target.mkdir()
    _run(folder, target, made / "modules")
    for path in folder.iterdir():
        if path.suffix != ".py" and not (target / path.name).exists():
            (target / path.name).symlink_to(path)
    logger.warning("trust_remote_code: %s", describe(code_that_ran(target)))
    return target


def code_that_ran(folder: str | Path) -> tuple[str, ...]:
    """The files whose code made a folder of `as_data`."""
    return tuple(json.loads((Path(folder) / RAN).read_text(encoding="utf-8")))


def describe(files: tuple[str, ...]) -> str:
    """In words: which code of a model's folder ran."""
    if not files:
        return "no code ran, since the folder is read without"
    return f"ran {', '.join(files)} of the model's folder, to read its configuration and tokenizer"


def _run(folder: Path, target: Path, modules: Path) -> None:
    command = [sys.executable, "-m", "atom_core.folder_code.converting", str(folder), str(target)]
    try:
        ended = subprocess.run(
            command,
            env=settings.child_environment(None) | _OFFLINE | {"HF_MODULES_CACHE": str(modules)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FolderCodeError(f"trust_remote_code: code of {folder} did not end in {TIME_LIMIT} seconds") from None
    if ended.returncode:
        lines = ended.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"its process ended with {ended.returncode}"
        raise FolderCodeError(f"trust_remote_code: code of {folder} cannot be used: {reason}")
