"""Make the environment of `make serve` and `make chat`: `python -m tools.serve_environment FOLDER`.

It holds the packages that serve, for editing, and what they need to run; the rest of the development environment is
left out. torch is of the version that the development environment pins.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path

from tools.progress_line import run

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("atom-kernels", "atom-models", "atom-core", "atom-server")
# What builds a package for editing; it is installed first, so that pip need not fetch it once for each package.
_BUILDS = ("hatchling", "editables")


def make_environment(folder: Path) -> int:
    """Make `folder` anew; the exit status of what failed, and then nothing is left of it."""
    python = str(folder / "bin" / "python")
    # Compiling what is never imported would take longer than all else.
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
    commands = (
        ("Making an environment", [sys.executable, "-m", "venv", "--clear", str(folder)]),
        ("Installing the build backend", [*pip, *(pinned(name) for name in _BUILDS)]),
        ("Installing ATOM (once; torch is large)", [*pip, "--no-build-isolation", pinned("torch"), *_editable()]),
    )
    for title, command in commands:
        if status := run(title, command):
            shutil.rmtree(folder, ignore_errors=True)
            return status
    return 0


def pinned(name: str) -> str:
    """The requirement of that name as the development environment has it; the name alone where it has none."""
    environments = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["envs"]
    lines = environments["default"]["dependencies"]
    return next((line for line in lines if line.split("==")[0] == name), name)


def _editable() -> list[str]:
    return [part for name in PACKAGES for part in ("--editable", str(ROOT / "packages" / name))]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(make_environment(Path(sys.argv[1])))
