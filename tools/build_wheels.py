"""Build the wheel of each package, without a network: `python tools/build_wheels.py [FOLDER]`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def build_wheels(folder: Path) -> list[Path]:
    """Write one wheel for each folder in ``packages/`` into `folder`; hatchling must be installed."""
    folder.mkdir(parents=True, exist_ok=True)
    for package in sorted((ROOT / "packages").iterdir()):
        if (package / "pyproject.toml").is_file():
            command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
            subprocess.run(command, cwd=package, check=True)
    return sorted(folder.glob("*.whl"))


if __name__ == "__main__":
    build_wheels(Path(sys.argv[1] if len(sys.argv) > 1 else "dist").resolve())
