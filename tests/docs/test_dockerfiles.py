"""The Dockerfiles name what is there, and make none of the usual mistakes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
DOCKERFILES = sorted((ROOT / "docker").iterdir())
BASES = {
    (path.name, name): image
    for path in DOCKERFILES
    for name, image in re.findall(r"^ARG (\w*IMAGE|BASE)=(\S+)$", path.read_text(), re.MULTILINE)
}
PAGES = [path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]


def instructions_of(path: Path) -> list[str]:
    """The instructions, each in one line."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    return [re.sub(r"\s+", " ", line) for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line]


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_what_is_copied_and_installed_is_in_the_repository_lowest_first(path: Path):
    text = path.read_text()
    assert re.findall(r"^COPY (?!--from)(\S+) ", text, re.MULTILINE) == ["packages"]
    installed = re.findall(r"/packages/(atom-\S+)", text)
    assert installed[:2] == ["atom-kernels", "atom-models"]
    for package in installed:
        assert (ROOT / "packages" / package / "pyproject.toml").is_file()


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_never_brings_a_torch_of_one_version(path: Path):
    assert "torch==" not in path.read_text()


@pytest.mark.parametrize("name", BASES, ids=" ".join)
def test_a_base_has_a_version_and_a_python_that_all_packages_take(name: tuple[str, str]):
    tag = BASES[name].partition(":")[2]
    assert tag not in ("", "latest")
    for project in (ROOT / "packages").glob("*/pyproject.toml"):
        takes = SpecifierSet(tomllib.loads(project.read_text())["project"]["requires-python"])
        for version in re.findall(r"(?:^|_py)(3\.\d+)", tag):
            assert version in takes


def test_every_build_that_a_page_tells_of_is_one():
    text = (ROOT / "docker" / "Dockerfile").read_text()
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE)
    devices = set(stages) - {"wheels", "compiler"}
    told = re.findall(r"docker build -f docker/(.+?) \.(?:$|`)", "\n".join(PAGES), re.MULTILINE)
    words = [re.match(r"(\S+)(?: --build-arg DEVICE=(\w+))? -t atom(?:-vllm)?:(\w+)$", line) for line in told]
    assert {word[1] for word in words if word} == {path.name for path in DOCKERFILES}
    assert {word[2] for word in words if word and word[2]} == devices
    assert all(word and word[2] in (None, word[3]) for word in words)
    assert re.findall(r"^ARG DEVICE=(\w+)$", text, re.MULTILINE)[0] in devices


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfile_makes_none_of_the_usual_mistakes(path: Path):
    stages: set[str] = set()
    for line in instructions_of(path):
        if line.startswith("FROM"):
            stages |= set(re.findall(r" AS (\w+)$", line))
        assert set(re.findall(r"from=(\w+)", line)) <= stages
        assert "sudo" not in line
        if "pip install" in line or "pip wheel" in line:
            assert "--no-cache-dir" in line
        if "apt-get" in line:
            assert all(part in line for part in ("update", "--no-install-recommends", "rm -rf /var/lib/apt/lists"))
        if line.startswith(("ENTRYPOINT", "CMD")):
            assert isinstance(json.loads(line.partition(" ")[2]), list)


def test_what_docker_ignores_keeps_the_packages():
    assert "!packages" in (ROOT / ".dockerignore").read_text().splitlines()
