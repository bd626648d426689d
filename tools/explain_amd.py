"""Writes what `explain` prints for AMD GPUs that need not be here, with both releases of AITER, into the docs.

python tools/explain_amd.py
"""

from __future__ import annotations

import contextlib
import io
import itertools
from pathlib import Path

from atom_kernels.aiter.api import RELEASES
from atom_kernels.cli.main import main
from atom_kernels.platform import AITER_ARCHES

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "amd"


def pages() -> dict[Path, str]:
    """The text of each file."""
    return {
        FOLDER / f"explain-{arch}-{release}.txt": _explain(arch, release)
        for arch, release in itertools.product(AITER_ARCHES, RELEASES)
    }


def _explain(arch: str, release: str) -> str:
    command = ["explain", "--platform", arch, "--aiter", release]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main(command)
    return f"$ python -m atom_kernels {' '.join(command)}\n{out.getvalue()}"


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    write()
