"""Environments of the clients: one for each set of requirements, made once and kept in an ignored folder."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conformance.suite import Suite

# Suites in Python are tests as ours are, so the runner of ours goes into each of their environments.
PYTEST = f"pytest=={importlib.metadata.version('pytest')}"
SECONDS = 1800


class EnvironmentUnavailableError(RuntimeError):
    """A client cannot be installed here; the message says why, in the installer's last words."""


def environment_of(suite: Suite, cache: Path) -> Path:
    """The folder of a suite's environment, made if it is not there yet.

    Raises:
        EnvironmentUnavailableError: the installer failed, or there is none.
    """
    contents = [platform.python_version(), PYTEST, *suite.requirements, "", *suite.without_dependencies]
    digest = hashlib.sha256(json.dumps(contents).encode()).hexdigest()[:12]
    folder = cache / f"{suite.name}-{digest}"
    complete = folder / "complete"
    if not complete.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _make_node(suite, folder) if suite.uses_node else _make_python(suite, folder)
        complete.touch()
    return folder


def command_of(suite: Suite, environment: Path, report: Path) -> list[str]:
    """What runs a suite in its environment and writes a JUnit report."""
    if not suite.uses_node:
        return [*pytest_command(suite, environment / "bin" / "python"), f"--junitxml={report}"]
    # Node looks for packages beside the file that imports them.
    copy = shutil.copy(suite.path, environment / suite.path.name)
    return [
        "node", "--test", "--test-reporter=spec", "--test-reporter-destination=stdout",
        "--test-reporter=junit", f"--test-reporter-destination={report}", str(copy),
    ]  # fmt: skip


def pytest_command(suite: Suite, python: Path) -> list[str]:
    """What runs a suite in Python with that interpreter."""
    # Not with the configuration of our own tests: their plugins are not installed there.
    own = ["-c", str(suite.path.parent / "pytest.ini"), "-p", "no:cacheprovider"]
    return [str(python), "-m", "pytest", *own, str(suite.path)]


def _make_python(suite: Suite, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if suite.without_dependencies:
        _run([*pip, "--no-deps", *suite.without_dependencies])
    _run([*pip, PYTEST, *suite.requirements])


def _make_node(suite: Suite, folder: Path) -> None:
    if not shutil.which("npm"):
        raise EnvironmentUnavailableError("npm is not installed")
    (folder / "package.json").write_text(json.dumps({"private": True, "type": "module"}))
    _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *suite.requirements])


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentUnavailableError(str(error)) from None
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line and not line.startswith("WARNING")]
        raise EnvironmentUnavailableError(" ".join(said[-2:]) or f"{command[0]} ended with {done.returncode}")
