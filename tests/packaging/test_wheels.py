"""Each package's wheel is whole, and installs and works alone in a clean environment."""

from __future__ import annotations

import re
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from source_tree import MAY_IMPORT, ROOT, needed_siblings, project
from wheels import CleanEnvironment

# One call of each package that needs its dependencies to be there; MODEL is a tiny checkpoint's folder.
FIRST_USE = {
    "atom_kernels": ["-m", "atom_kernels", "explain"],
    "atom_models": ["-c", "from atom_models import load_model; print(load_model('MODEL').logits([[1, 2]])[0].shape)"],
    "atom_core": [
        "-c",
        "from atom_core import LLMEngine; print(LLMEngine('MODEL', num_kv_blocks=64).generate(['a b']))",
    ],
    "atom_vllm": ["-m", "atom_vllm.doctor", "--help"],
    "atom_server": ["-m", "atom_server", "generate", "a b", "--model", "MODEL", "--num-kv-blocks", "64"],
}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_wheel_holds_its_package_and_nothing_else(package: str, our_wheels: dict[str, Path]):
    with zipfile.ZipFile(our_wheels[package]) as archive:
        names = archive.namelist()
    assert f"{package}/py.typed" in names
    assert {name.split("/")[0] for name in names} == {package, f"{package}-{project(package)['version']}.dist-info"}
    assert any(re.search(r"\.dist-info/licenses/LICENSE$", name) for name in names)


def test_the_kernels_wheel_carries_its_sources_in_c(our_wheels: dict[str, Path]):
    folder = ROOT / "packages/atom-kernels/src"
    sources = {str(file.relative_to(folder)) for file in folder.rglob("*.[ch]")}
    with zipfile.ZipFile(our_wheels["atom_kernels"]) as archive:
        assert sources
        assert sources <= set(archive.namelist())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, our_wheels: dict[str, Path]):
    """Installs a package, from its wheel and those of the siblings that it needs, into an environment of its own."""
    torch = tmp_path_factory.mktemp("constraints") / "torch.txt"
    torch.write_text(f"torch=={version('torch').partition('+')[0]}\n")
    environments: dict[str, CleanEnvironment] = {}

    def install(package: str) -> CleanEnvironment:
        if package not in environments:
            environments[package] = CleanEnvironment(tmp_path_factory.mktemp(package))
            wheels = [our_wheels[name] for name in [package, *needed_siblings(package)]]
            environments[package].pip("install", "--quiet", "--constraint", torch, *wheels)
        return environments[package]

    return install


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_installs_alone_and_works(package: str, installed, tmp_path: Path, tiny_llama: Path):
    environment = installed(package)
    arguments = [argument.replace("MODEL", str(tiny_llama)) for argument in FIRST_USE[package]]
    assert environment.run(*arguments, cwd=tmp_path).strip()
    others = set(MAY_IMPORT) - {package} - set(needed_siblings(package))
    assert {name for name in others if can_import(environment, name)} == set()


@pytest.mark.slow
@pytest.mark.network
def test_the_tests_of_the_kernels_need_torch_and_pytest_only(installed):
    environment = installed("atom_kernels")
    environment.pip("install", "--quiet", f"pytest=={version('pytest')}")
    tests = ROOT / "packages" / "atom-kernels" / "tests"
    assert " passed" in environment.run("-m", "pytest", "-q", "-p", "no:cacheprovider", tests, cwd=ROOT, timeout=900)


def can_import(environment: CleanEnvironment, name: str) -> bool:
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}) is not None)"
    return environment.run("-c", code, cwd="/").strip() == "True"
