"""Install Ray into a folder for PYTHONPATH, unless it is there: `python tools/ray_folder.py FOLDER`.

It lies beside the development environment: what it brings along is not to change what the other tests meet.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RAY = "ray[serve]==2.60.0"


def install(folder: Path) -> None:
    """Install Ray and what it needs.

    Raises:
        CalledProcessError: pip cannot.
    """
    complete = folder / f"complete-{RAY}"
    if not complete.exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--upgrade"]
        subprocess.run([*pip, "--target", str(folder), RAY], check=True)
        complete.touch()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    install(Path(sys.argv[1]))
