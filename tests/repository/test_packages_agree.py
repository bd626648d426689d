"""The packages' metadata: one version, exact pins between them, and all that the code imports is declared."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement

from atom_core.config.executor_backend import INSTALL as INSTALL_RAY
from atom_core.structured_output.constraints.choice import INSTALL
from atom_core.worker.transfer.nixl_memory import INSTALL as INSTALL_NIXL
from source_tree import MAY_IMPORT, ROOT, imported_modules, product_files, project, short, source_files

# Vendors' libraries, each imported lazily where it is found to be installed.
OPTIONAL = {
    "transformers",
    "PIL",
    "av",
    "aiter",
    "matplotlib",
    "nixl",
    "openpyxl",
    "opentelemetry",
    "ray",
    "triton",
    "uvloop",
    "vllm",
    "xgrammar",
}


# Needed without an import: torch warns where numpy is missing, and starlette reads forms by python-multipart.
NEVER_IMPORTED = {"numpy", "python-multipart"}

# Comes with its own web framework, whose parts are that framework's.
COMES_WITH = {"starlette": "fastapi"}


def requirements(package: str) -> list[Requirement]:
    return [Requirement(line) for line in project(package)["dependencies"]]


def declared(package: str) -> set[str]:
    """Distributions that a package may count on: its own, and what the siblings that it needs bring."""
    names = {normal(line.name) for line in requirements(package)}
    return names.union(*(declared(sibling) for sibling in MAY_IMPORT if normal(sibling) in names))


def imported(package: str) -> dict[str, str]:
    """The distributions that a package imports, each with a place."""
    distributions = packages_distributions()
    places = {}
    for file in source_files(package):
        for module, line in imported_modules(file):
            top = module.split(".")[0]
            if top in sys.stdlib_module_names or top in OPTIONAL or top == package:
                continue
            # Packages that are installed for editing are in no list of installed modules.
            name = top if top in MAY_IMPORT else distributions.get(top, [top])[0]
            places.setdefault(normal(COMES_WITH.get(name, name)), f"{short(file)}:{line} imports {top}")
    return places


def test_all_packages_have_one_version():
    assert len({project(package)["version"] for package in MAY_IMPORT}) == 1


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_needs_its_siblings_at_exactly_its_own_version(package: str):
    siblings = {name.replace("_", "-") for name in MAY_IMPORT}
    extras = [Requirement(line) for lines in project(package)["optional-dependencies"].values() for line in lines]
    pins = {str(line.specifier) for line in [*requirements(package), *extras] if line.name in siblings}
    assert pins <= {f"=={project(package)['version']}"}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_pins_nothing_but_its_siblings(package: str):
    siblings = {name.replace("_", "-") for name in MAY_IMPORT}
    others = [line for line in requirements(package) if line.name not in siblings]
    assert [str(line) for line in others if "==" in str(line) or "<" in str(line.specifier)] == []


def test_any_supported_torch_will_do():
    assert [str(line) for line in requirements("atom_kernels") if line.name == "torch"] == ["torch>=2.8"]


def test_extras_of_vendors_are_forwarded_down_to_the_kernels():
    assert project("atom_kernels")["optional-dependencies"].keys() == {"rocm", "cuda"}
    layers = [("atom_models", "kernels"), ("atom_core", "models"), ("atom_server", "core"), ("atom_vllm", "models")]
    for upper, lower in layers:
        version = project(upper)["version"]
        for extra in ("rocm", "cuda"):
            assert f"atom-{lower}[{extra}]=={version}" in project(upper)["optional-dependencies"][extra]


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_everything_that_is_imported_is_declared(package: str):
    assert [place for name, place in imported(package).items() if name not in declared(package)] == []


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_everything_that_is_declared_is_imported(package: str):
    names = {normal(line.name) for line in requirements(package)}
    assert sorted(names - imported(package).keys() - NEVER_IMPORTED) == []


def test_the_xgrammar_that_is_advised_is_that_of_the_extra():
    [line] = project("atom_core")["optional-dependencies"]["xgrammar"]
    assert f"pip install '{line}'" == INSTALL


def test_the_ray_that_is_advised_is_that_of_the_extra():
    [line] = project("atom_core")["optional-dependencies"]["ray"]
    assert f"pip install '{line}'" == INSTALL_RAY


def test_the_nixl_that_is_advised_is_that_of_the_extra():
    [line] = project("atom_core")["optional-dependencies"]["nixl"]
    assert f"pip install '{line}'" == INSTALL_NIXL


def test_nobody_is_told_to_install_our_names_from_an_index():
    """Some of them are other people's there: a path, or a wheel's, is what to give."""
    texts = [*product_files(), *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("packages/*/README.md")]
    bare = re.compile(r"pip install[^`\n]*[\s'\"]atom-(?:kernels|models|core|server|vllm)\b")
    assert [f"{short(file)}: {found[0]}" for file in texts if (found := bare.search(file.read_text()))] == []


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_type_checker_reads_every_package():
    """A folder that it does not find is no error to it."""
    # atom-compat has another name than its package, which is ROCm/ATOM's.
    others = {"packages/atom-compat/src", "benchmarks", "tools"}
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pyright"]["include"]
    assert set(included) == {f"packages/{normal(package)}/src" for package in MAY_IMPORT} | others
    assert all((ROOT / folder).is_dir() for folder in included)
