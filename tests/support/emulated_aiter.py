"""Makes ``import aiter`` find the emulator: one release on one architecture, as long as a test needs it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TREES = ROOT / "tests" / "aiter_emulator"
RELEASES = {"git": "0.1.20.post1", "pypi": "0.1.7.post2.dev18"}


@contextmanager
def emulated_aiter(release: str = "git", arch: str = "gfx942") -> Iterator[None]:
    """``import aiter`` and ``importlib.metadata.version("amd-aiter")`` answer with the emulator inside of the block.

    Args:
        release: "git" or "pypi".
        arch: "gfx942" or "gfx950": AITER fixes its fp8 type by it when it is imported.

    Modules named ``aiter...`` that were there before are back afterwards; those of the block are gone.
    """
    before = _take_modules()
    finders, path = list(sys.meta_path), list(sys.path)
    sys.meta_path[:] = [finder for finder in finders if type(finder).__name__ != "FlatNames"]
    variables = {name: os.environ.get(name) for name in ("GPU_ARCHS", "CU_NUM")}
    sys.path[:] = [str(TREES / release), *path, *([] if str(ROOT) in path else [str(ROOT)])]
    os.environ["GPU_ARCHS"] = arch
    os.environ.pop("CU_NUM", None)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        _take_modules()
        sys.modules.update(before)
        sys.meta_path[:], sys.path[:] = finders, path
        for name, value in variables.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        importlib.invalidate_caches()


def emulator_environment(release: str = "git", arch: str = "gfx942") -> dict[str, str]:
    """The environment of a process of its own whose ``import aiter`` is the emulator."""
    paths = [str(TREES / release), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "GPU_ARCHS": arch}


def _take_modules() -> dict[str, object]:
    """Remove AITER's modules from those imported, and return them."""
    names = [name for name in sys.modules if name == "aiter" or name.startswith("aiter.")]
    return {name: sys.modules.pop(name) for name in names}
