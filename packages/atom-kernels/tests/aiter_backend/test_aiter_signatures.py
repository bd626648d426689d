"""What our adapters rely on in AITER is there: in the table that we ship, and in the sources that it was taken from."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from atom_kernels.aiter.api import RELEASES, AiterApi, Parameter, known_api
from atom_kernels.aiter.functions import FUNCTIONS
from atom_kernels.aiter.sources import read_api
from emulated_aiter import TREES

ADAPTERS = Path(sys.modules[AiterApi.__module__].__file__ or "").parent
# Ranks of the release on PyPI tell each other of memory by tensors, not by addresses: these are not called there.
BY_TENSORS = {
    *("all_reduce", "allocate_meta_buffer", "fused_allreduce_rmsnorm", "get_meta_buffer_ipc_handle"),
    *("init_custom_ar", "meta_size", "register_input_buffer"),
}
WHEEL = "amd-aiter==0.1.7.post2.dev18"
SOURCES = f"https://codeload.github.com/ROCm/aiter/tar.gz/refs/tags/v{known_api('git').version}"


def place(name: str, release: str) -> str | None:
    return getattr(FUNCTIONS[name], release)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_has_a_place_in_a_release_exactly_where_its_parameters_are_known(name, release):
    assert (place(name, release) is None) == (known_api(release).parameters(name) is None)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_all_that_we_always_pass_is_among_the_parameters_of_every_release(name, release):
    api = known_api(release)
    if api.parameters(name) is not None:
        assert api.why_not(name) is None


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_what_some_releases_lack_is_known_to_at_least_one_and_has_a_spelling(name, release):
    function, everywhere = FUNCTIONS[name], [known_api(release).parameters(name) or () for release in RELEASES]
    known = {parameter.name for parameters in everywhere for parameter in parameters}
    assert [newer for newer in function.newer if not function.spelled(newer, known)] == []
    assert set(function.newer) & set(function.uses) == set()


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_adapters_pass_all_that_the_table_says_and_the_table_says_no_more(name):
    said = [names for names in said_in_adapters() if name in names]
    assert said, f"no adapter calls {name}"
    function = FUNCTIONS[name]
    assert [parameter for parameter in (*function.uses, *function.newer) if parameter not in set().union(*said)] == []


@functools.cache
def said_in_adapters() -> list[set[str]]:
    """The texts and the keywords of calls in each file of adapters: names of functions and parameters are among
    them.
    """
    files = [file for file in ADAPTERS.rglob("*.py") if file.name not in ("functions.py", "library.py", "report.py")]
    nodes = [list(ast.walk(ast.parse(file.read_text()))) for file in files]
    return [
        {node.value for node in walked if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        | {node.arg for node in walked if isinstance(node, ast.keyword) and node.arg}
        for walked in nodes
    ]


def test_no_adapter_reaches_aiter_but_through_the_table():
    found = []
    for file in sorted(ADAPTERS.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [f"{file.name}: {module}" for module in modules if module.split(".")[0] == "aiter"]
    assert found == []


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_emulator_has_the_parameters_of_our_table(name, release):
    """Others wrote it from the same sources, so that one of the two readings would have to be wrong."""
    emulated, known = read_api(TREES / release / "aiter", known_api(release).version), known_api(release)
    assert names_of(emulated.parameters(name)) == names_of(known.parameters(name))


def names_of(parameters: tuple[Parameter, ...] | None) -> list[str] | None:
    return None if parameters is None else [parameter.name for parameter in parameters]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The release on the package index: downloaded, never installed, nothing of it run."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), WHEEL]
    subprocess.run(command, check=True, timeout=300)
    return zipfile.ZipFile(next(folder.glob("*.whl")))


@pytest.fixture(scope="module")
def tagged_api(tmp_path_factory: pytest.TempPathFactory) -> AiterApi:
    """The tag of AITER's repository that the table was taken from: its Python files, of which nothing is run."""
    folder = tmp_path_factory.mktemp("sources")
    try:
        with (
            urllib.request.urlopen(SOURCES, timeout=60) as answer,
            tarfile.open(fileobj=answer, mode="r|gz") as archive,
        ):
            for member in archive:
                if re.fullmatch(r"[^/]+/aiter/.+\.py", member.name):
                    archive.extract(member, folder, filter="data")
    except urllib.error.URLError as error:
        pytest.skip(f"{SOURCES} cannot be reached: {error.reason}")
    return read_api(next(folder.iterdir()) / "aiter", known_api("git").version)


@pytest.mark.network
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_tagged_sources_have_exactly_the_parameters_of_our_table(tagged_api, name):
    assert tagged_api.parameters(name) == known_api("git").parameters(name)


@pytest.mark.network
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_published_wheel_has_exactly_the_parameters_of_our_table(wheel, name):
    there = parameters_in(wheel, place(name, "pypi") or _flat(place(name, "git")))
    if name in BY_TENSORS:
        # These two have nothing to say by tensors.
        assert (there == known_api("git").parameters(name)) == (name in ("allocate_meta_buffer", "meta_size"))
    else:
        assert there == known_api("pypi").parameters(name)


@pytest.mark.network
def test_the_published_wheel_is_the_version_of_our_table(wheel):
    metadata = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    lines = wheel.read(metadata).decode().splitlines()
    assert f"Version: {known_api('pypi').version}" in lines


def parameters_in(wheel: zipfile.ZipFile, path: str) -> tuple[Parameter, ...] | None:
    """The parameters of ``module:function`` in the wheel's source; None where it has no such module or function."""
    module, function = path.split(":")
    file = module.replace(".", "/") + ".py"
    if file not in wheel.namelist():
        return None
    instance, _, name = function.rpartition(".")
    source = wheel.read(file).decode()
    body = ast.parse(source).body
    if instance:  # a method of what the module keeps under that name
        class_name = source.split(f"\n{instance} = ")[1].split("(")[0]
        body = next(node.body for node in body if isinstance(node, ast.ClassDef) and node.name == class_name)
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _parameters(node.args)[1 if instance else 0 :]
    return None


def _parameters(arguments: ast.arguments) -> tuple[Parameter, ...]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    return (
        *(Parameter(argument.arg, _source(default)) for argument, default in zip(positional, defaults, strict=True)),
        *(Parameter(argument.arg, _source(default), True) for argument, default in named),
    )


def _source(default: ast.expr | None) -> str | None:
    return None if default is None else ast.unparse(default)


def _flat(path: str | None) -> str:
    """Where a function that only git has would lie in the release, whose Triton modules are in one folder."""
    module, function = (path or "").split(":")
    if module.startswith("aiter.ops.triton."):
        module = f"aiter.ops.triton.{module.rsplit('.', 1)[-1]}"
    return f"{module}:{function}"
