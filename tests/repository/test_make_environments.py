"""What `make` makes its environments with: little for serving, and pip's output as one line."""

from __future__ import annotations

import itertools
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from source_tree import ROOT, project
from tools.development_environment import ENVIRONMENTS, LOCKED, UNLOCKED, _install, _install_rest
from tools.serve_environment import PACKAGES, pinned

TALKS = "import sys; [print(f'Collecting package-{n}') for n in range(30)]; sys.exit(int(sys.argv[1]))"


def progress(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "progress_line.py"), "Installing", sys.executable, "-c", TALKS]
    return subprocess.run([*command, *arguments], text=True, timeout=60, check=False, **options)


def test_a_command_that_succeeds_leaves_two_lines_in_a_log():
    done = progress("0", capture_output=True)
    assert (done.returncode, done.stdout) == (0, "")
    first, second = done.stderr.splitlines()
    assert first == "Installing ..."
    assert second.startswith("Installing: done in ")


def test_on_a_terminal_all_of_it_is_one_line():
    reader, writer = pty.openpty()
    try:
        assert progress("0", stdout=subprocess.DEVNULL, stderr=writer).returncode == 0
        said = os.read(reader, 100_000).decode()
    finally:
        os.close(reader)
        os.close(writer)
    assert "package-29" in said
    assert said.count("\n") == 1


def test_a_command_that_fails_is_shown_whole_with_its_status():
    done = progress("3", capture_output=True)
    assert done.returncode == 3
    assert done.stderr.count("Collecting package-") >= 30
    assert done.stderr.splitlines()[-1].startswith("Installing failed: ")


def test_what_serves_is_the_server_and_all_that_it_needs_of_ours():
    ours = set(PACKAGES)
    for name in PACKAGES:
        needed = {line.split("==")[0] for line in project(name.replace("-", "_"))["dependencies"]}
        assert {line for line in needed if line.startswith("atom-")} <= ours
    assert "atom-server" in ours


def test_serving_and_testing_pin_one_torch():
    tests = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["envs"]["default"]["dependencies"]
    assert pinned("torch") in tests
    assert pinned("torch").startswith("torch==")


@pytest.mark.parametrize("target", ["serve", "chat"])
def test_serving_does_not_ask_for_the_development_environment(target: str, tmp_path: Path):
    command = ["make", "--dry-run", "--no-print-directory", "-C", str(ROOT), "SERVE=.absent/atom", target]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "tools.serve_environment" in shown
    # The interpreter that runs this test may lie in a folder of hatch's.
    assert not [line for line in shown.splitlines() if "bin/hatch" in line or "hatch run" in line]


def test_what_runs_in_development_is_locked_by_its_hash():
    environments = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["envs"]
    locked = {name: _locked(name) for name in ENVIRONMENTS}
    for line in environments["default"]["dependencies"]:
        wanted, _, version = line.split(";")[0].strip().partition("==")
        name = wanted.split("[")[0]
        if not name.startswith(UNLOCKED):
            assert locked["development"].get(name.lower()) == version, (
                f"{line}: python -m tools.development_environment --lock"
            )
    assert "hatch" in locked["hatch"]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_an_environment_is_installed_by_hashes_alone(name: str):
    command = _install(ENVIRONMENTS[name], name)
    assert {"--require-hashes", "--no-deps", str(LOCKED / f"{name}.txt")} <= set(command)
    shown = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", "-C", str(ROOT), "HATCH=.absent/hatch", "setup"],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    assert "tools.development_environment" in shown
    assert "pip install" not in shown


def test_torch_and_every_package_come_last_and_are_not_left_to_what_hatch_remembers():
    command = _install_rest(ENVIRONMENTS["development"])
    assert pinned("torch") in command
    packages = {str(path.parent) for path in ROOT.glob("packages/*/pyproject.toml")}
    assert packages == {where for flag, where in itertools.pairwise(command) if flag == "--editable"}


def _locked(name: str) -> dict[str, str]:
    """Versions of what is locked, by name; each has a hash."""
    versions: dict[str, str] = {}
    for entry in (LOCKED / f"{name}.txt").read_text().replace(" \\\n", " ").splitlines():
        requirement, *hashes = entry.split(" --hash=")
        assert hashes, f"{entry} has no hash"
        assert all(digest.strip().startswith("sha256:") for digest in hashes)
        package, _, version = requirement.split(";")[0].strip().partition("==")
        versions[package.lower()] = version
    return versions
