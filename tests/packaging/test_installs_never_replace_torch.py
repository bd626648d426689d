"""Where a vendor's torch and triton are installed, pip would leave both alone. Stub wheels stand for the real ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from source_tree import MAY_IMPORT, needed_siblings, project
from wheels import CleanEnvironment, make_stub

VENDOR_TORCH = "2.8.0+rocm7"
VENDOR_TRITON = "3.4.0+rocm7"
# Newer than versions that are dates, too.
NEWEST = "9999.0"
# Those that no other one needs: installing them brings all others, whose extras they pass on.
TOP = [name for name in MAY_IMPORT if not any(name in needed_siblings(other) for other in MAY_IMPORT if other != name)]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stub of every distribution that our packages need, torch and triton in a newer version."""
    folder = tmp_path_factory.mktemp("index")
    lines = [line for name in MAY_IMPORT for line in project(name)["dependencies"]]
    lines += [
        line for name in MAY_IMPORT for extra in project(name)["optional-dependencies"].values() for line in extra
    ]
    for name in {Requirement(line).name for line in lines if not line.startswith("atom-")}:
        make_stub(folder, name, NEWEST)
    return folder


@pytest.fixture(scope="module")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """An environment like a ROCm container's: the vendor's torch and triton are installed."""
    stubs = tmp_path_factory.mktemp("vendor")
    environment = CleanEnvironment(tmp_path_factory.mktemp("environment"))
    wheels = [make_stub(stubs, "torch", VENDOR_TORCH), make_stub(stubs, "triton", VENDOR_TRITON)]
    environment.pip("install", "--no-index", *wheels)
    return environment


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    """An environment in which nothing is installed."""
    return CleanEnvironment(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def planned(index: Path, our_wheels: dict[str, Path]):
    """What installing a package with its siblings from their wheels would bring, by name and version."""

    @cache
    def plan(environment: CleanEnvironment, package: str, extras: str = "") -> dict[str, str]:
        # Siblings are given by path: a name alone could be somebody else's on an index.
        siblings = [our_wheels[name] for name in needed_siblings(package)]
        return environment.planned("--no-index", "--find-links", index, f"{our_wheels[package]}{extras}", *siblings)

    return plan


@pytest.mark.parametrize("extras", ["", "[rocm,cuda]"])
@pytest.mark.parametrize("package", TOP)
def test_an_installed_torch_and_triton_stay(package: str, extras: str, planned, vendor):
    plan = planned(vendor, package, extras)
    assert {name.replace("_", "-") for name in (package, *needed_siblings(package))} <= plan.keys()
    assert plan.keys() & {"torch", "triton"} == set()


def test_an_environment_sees_no_folder_of_the_python_that_runs_the_tests(empty, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert str(tmp_path) not in empty.run("-c", "import sys; print(sys.path)")


def test_every_package_is_brought_by_those_that_no_other_one_needs():
    assert {name for package in TOP for name in (package, *needed_siblings(package))} == set(MAY_IMPORT)


@pytest.mark.parametrize("package", TOP)
def test_the_rocm_extra_brings_aiter(package: str, planned, vendor):
    assert "amd-aiter" in planned(vendor, package, "[rocm,cuda]")
    assert "amd-aiter" not in planned(vendor, package)


@pytest.mark.parametrize("package", TOP)
def test_the_cuda_extra_brings_triton_where_there_is_none(package: str, planned, empty):
    plan = planned(empty, package, "[cuda]")
    assert plan["torch"] == plan["triton"] == NEWEST
    assert "amd-aiter" not in plan


def test_a_plain_install_brings_no_triton_of_ours(planned, empty):
    assert "triton" not in planned(empty, "atom_server")


@pytest.mark.slow
@pytest.mark.network
def test_what_others_need_does_not_replace_torch_either(vendor, our_wheels):
    plan = vendor.planned(*our_wheels.values())
    assert "fastapi" in plan
    assert plan.keys() & {"torch", "triton"} == set()
    assert [name for name in plan if name.startswith("nvidia")] == []
