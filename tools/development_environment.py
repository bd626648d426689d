"""Make the environments of development: `python -m tools.development_environment [--lock]`.

`.venv` holds hatch, and `.hatch/dev` all that the packages and their tests need. Both get what `tools/locked` names,
each file of it by its hash: nothing that was put in its place on an index is run. torch has no line there, since its
builds differ from machine to machine: it and the packages, for editing, come last. hatch, which may remember an
environment of this name that is gone, finds everything in its place.

`--lock` writes these lists anew from what is installed now. It wants `uv`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tools.progress_line import run
from tools.serve_environment import pinned

ROOT = Path(__file__).resolve().parent.parent
LOCKED = ROOT / "tools" / "locked"
ENVIRONMENTS = {"hatch": Path(".venv"), "development": Path(".hatch/dev")}
# Builds of torch differ from machine to machine, and the packages are made from this folder.
UNLOCKED = ("torch", "atom-")


def make_environments(root: Path = ROOT) -> int:
    """Make both environments, or bring them to what is locked; the exit status of what failed."""
    for name, folder in ENVIRONMENTS.items():
        # A first try that was stopped may have left an environment without pip.
        clear = [] if (root / folder / "bin" / "pip").exists() else ["--clear"]
        makes = [sys.executable, "-m", "venv", *clear, str(root / folder)]
        for title, command in ((f"Making {folder}", makes), (f"Installing {name}", _install(root / folder, name))):
            if status := run(title, command):
                return status
    return run(
        "Installing torch and the packages (once; torch is large)", _install_rest(root / ENVIRONMENTS["development"])
    )


def write_lists() -> int:
    """Lock what both environments hold now."""
    uv = shutil.which("uv")
    if uv is None:
        print("uv is not installed, and knows the hashes of packages: python -m pip install uv", file=sys.stderr)
        return 1
    markers = _markers()
    for name, folder in ENVIRONMENTS.items():
        freeze = [str(folder / "bin" / "python"), "-m", "pip", "freeze"]
        held = subprocess.run(freeze, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        wanted = [line for line in held.splitlines() if "==" in line and not line.startswith(UNLOCKED)]
        wanted = [line + markers.get(line.partition("==")[0], "") for line in wanted]
        lock = [uv, "pip", "compile", "--no-deps", "--universal", "--generate-hashes", "--no-header", "--no-annotate"]
        lock += ["--python-version", "3.11", "--quiet", "-", "--output-file", str(LOCKED / f"{name}.txt")]
        subprocess.run(lock, input="\n".join(wanted), text=True, check=True, cwd=ROOT)
    return 0


def _markers() -> dict[str, str]:
    """What pyproject.toml says of where a package is wanted, such as ``; sys_platform == 'linux'``, by its name."""
    environments = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["envs"]
    parts = [line.partition(";") for line in environments["default"]["dependencies"]]
    return {requirement.partition("==")[0]: f"; {marker.strip()}" for requirement, _, marker in parts if marker}


def _pip_install(folder: Path) -> list[str]:
    # Compiling what is never imported would take longer than all else.
    return [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]


def _install(folder: Path, name: str) -> list[str]:
    return [*_pip_install(folder), "--no-deps", "--require-hashes", "--requirement", str(LOCKED / f"{name}.txt")]


def _install_rest(folder: Path) -> list[str]:
    packages = [
        part for path in sorted(ROOT.glob("packages/*/pyproject.toml")) for part in ("--editable", str(path.parent))
    ]
    return [*_pip_install(folder), "--no-build-isolation", pinned("torch"), *packages]


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--lock"]):
        sys.exit(__doc__)
    sys.exit(write_lists() if sys.argv[1:] else make_environments())
