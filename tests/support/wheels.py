"""Our wheels, stub wheels of other distributions, and clean environments to install them into."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any


def make_stub(folder: Path, name: str, version: str) -> Path:
    """Write a wheel that has a name and a version and nothing in it."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: stub\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{stem}.dist-info/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{stem}.dist-info/RECORD"])
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
    return wheel


class CleanEnvironment:
    """A virtual environment with nothing in it, not even pip: the pip of these tests installs into it.

    Attributes:
        folder: where it lies.
        python: its interpreter.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)

    def pip(self, *arguments: str | Path) -> str:
        """Run pip on this environment and return what it prints; `--no-index` keeps the settings of the machine out."""
        command = [sys.executable, "-m", "pip", "--python", self.python, "--disable-pip-version-check", "--no-input"]
        environment = _variables_but("PYTHONPATH")
        if "--no-index" in arguments:
            environment = _variables_but("PYTHONPATH", "PIP_") | {"PIP_CONFIG_FILE": os.devnull}
        return _output([*command, *arguments], timeout=900, env=environment)

    def planned(self, *arguments: str | Path) -> dict[str, str]:
        """The distributions that ``pip install ARGUMENTS`` would install, each with its version."""
        report = self.folder / "report.json"
        self.pip("install", "--dry-run", "--quiet", "--report", report, *arguments)
        entries: list[dict[str, Any]] = json.loads(report.read_text())["install"]
        return {entry["metadata"]["name"].lower().replace("_", "-"): entry["metadata"]["version"] for entry in entries}

    def run(self, *arguments: str | Path, timeout: float = 300, **options: Any) -> str:
        """Run its Python, which sees no folder of the Python that runs the tests, and return what it prints."""
        return _output([self.python, *arguments], timeout=timeout, env=_variables_but("PYTHONPATH"), **options)


def _variables_but(*beginnings: str) -> dict[str, str]:
    """The environment variables of this process whose names do not begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(beginnings)}


def _output(command: list[str | Path], **options: Any) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout
