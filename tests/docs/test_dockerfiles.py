"""The Dockerfiles name what is there: nobody here can build them, so that their paths and versions are held instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
PAGES = [path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_what_is_copied_and_installed_is_in_the_repository(path: Path):
    text = path.read_text()
    assert re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE) == ["packages"]
    installed = re.findall(r"/opt/atom/packages/(\S+)", text)
    assert installed
    for package in installed:
        assert (ROOT / "packages" / package / "pyproject.toml").is_file()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_packages_are_installed_lowest_first_and_never_bring_a_torch(path: Path):
    installed = re.findall(r"/opt/atom/packages/(\S+)", path.read_text())
    assert installed[:2] == ["atom-kernels", "atom-models"]
    assert "torch==" not in path.read_text()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_a_page_says_how_to_build_it(path: Path):
    assert any(f"docker build -f docker/{path.name}" in page for page in PAGES)


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_a_dockerfile_makes_none_of_the_usual_mistakes(path: Path):
    text = path.read_text()
    instructions = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    bases = re.findall(r"^ARG BASE=(\S+)$", text, re.MULTILINE)
    assert [base.partition(":")[2] not in ("", "latest") for base in bases] == [True]
    stages = set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE))
    assert set(re.findall(r"COPY --from=(\w+)", text)) == stages
    for line in instructions:
        assert re.match(r"(ARG|FROM|RUN|COPY|USER|EXPOSE|ENTRYPOINT|CMD) ", line)
        assert "sudo" not in line
        if "pip install" in line or "pip wheel" in line:
            assert "--no-cache-dir" in line
        if "apt-get" in line:
            assert all(part in line for part in ("update", "--no-install-recommends", "rm -rf /var/lib/apt/lists"))
        if line.startswith(("ENTRYPOINT", "CMD")):
            assert isinstance(json.loads(line.partition(" ")[2]), list)


def test_what_docker_ignores_keeps_the_packages():
    assert "!packages" in (ROOT / ".dockerignore").read_text().splitlines()
