"""Who imports whom, and where torch is not."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from source_tree import MAY_IMPORT, ROOT, imported_modules, package_folder, short, source_files, tree

# Modules of the API process, and of the scheduler's side of the engine: counts and ids, no tensors.
FREE_OF_TORCH = [
    "atom_core.messages",
    "atom_core.scheduler",
    "atom_core.kv_cache",
    "atom_core.tokenization",
    "atom_core.config",
    "atom_core.models",
    "atom_core.engine.async_engine",
    "atom_models.hub",
    "atom_models.checkpoint",
    "atom_server.app",
    "atom_server.cli.main",
    "atom_server.options",
]
# The files and folders right below a package, the highest first; names beside each other see nothing of each other.
ROOMS = {
    "atom_core": (
        "engine",
        "executor",
        "worker",
        "profiling folder_code",
        "errors",
        "failure",
        "config",
        "structured_output scheduler",
        "tokenization speculation kv_cache limited_process",
        "kv_events kv_transfer",
        "messages models settings log_lines seldom host_memory garbage proved_sockets",
    ),
    "atom_server": (
        "__main__ entrypoints benchmarks examples",
        "cli",
        "apart",
        "lifecycle bench traces",
        "app banner",
        "routes startup",
        "responses batches",
        "answers observe",
        "scoring",
        "generation",
        "prompts",
        "state",
        "middleware",
        "access request_log",
        "connections pictures",
        "options",
        "output",
        "schemas",
        "bodies",
        "errors settings media_domains",
    ),
}
# `EngineArgs.create_engine`, under the name that users of ROCm/ATOM know.
UPWARDS = {"packages/atom-core/src/atom_core/config/engine_args.py imports atom_core.engine.llm_engine"}
HEAVY = {"torch", "transformers", "triton", "tensorflow", "jax"}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_nobody_imports_upwards(package: str):
    forbidden = set(MAY_IMPORT) - {package, *MAY_IMPORT[package]}
    files = [*source_files(package), *sorted((package_folder(package) / "tests").rglob("*.py"))]
    found = [
        f"{short(file)}:{line} imports {module}"
        for file in files
        for module, line in imported_modules(file)
        if module.split(".")[0] in forbidden
    ]
    assert found == []


@pytest.mark.parametrize("package", sorted(set(MAY_IMPORT) - {"atom_kernels"}))
def test_kernels_in_triton_are_in_atom_kernels_alone(package: str):
    found = [
        f"{short(file)}:{line} imports {module}"
        for file in source_files(package)
        for module, line in imported_modules(file)
        if module.split(".")[0] == "triton"
    ]
    assert found == []


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_of_a_package_imports_only_rooms_below_it(package: str):
    heights = {room: height for height, rooms in enumerate(reversed(ROOMS[package])) for room in rooms.split()}
    heights["__init__"] = len(ROOMS[package])
    found = []
    for file in source_files(package):
        room = file.relative_to(package_folder(package) / "src" / package).parts[0].removesuffix(".py")
        for module, line in imported_modules(file, for_types=False):
            within, _, rest = module.partition(".")
            other = rest.split(".")[0]
            if within == package and other not in ("", room) and heights[room] <= heights[other]:
                found.append(f"{short(file)}:{line} imports {module}")
    assert [each for each in found if re.sub(r":\d+", "", each) not in UPWARDS] == []


def test_what_mixers_share_imports_no_vendor_and_no_mixer():
    own = {"mixers", "operator", "cases", "platform", "protocols"}
    found = [
        f"{short(file)}:{line} imports {module}"
        for file in source_files("atom_kernels")
        if file.parent.name == "mixers"
        for module, line in imported_modules(file, for_types=False)
        if module.startswith("atom_kernels.") and module.split(".")[1] not in own
    ]
    assert found == []


def test_packages_do_not_import_tests_or_benchmarks():
    found = [
        f"{short(file)}:{line} imports {module}"
        for package in MAY_IMPORT
        for file in source_files(package)
        for module, line in imported_modules(file)
        if module.split(".")[0] in {"benchmarks", "tests", "tools", "tiny_models", "pytest"}
    ]
    assert found == []


def test_what_tests_of_the_kernels_import_first_comes_with_the_package_and_pytest():
    files = sorted((package_folder("atom_kernels") / "tests").rglob("*.py"))
    helpers = {file.stem for file in [*files, *(ROOT / "tests" / "support").iterdir()]} | {"tests"}
    brought = {"atom_kernels", "torch", "triton", "numpy", "pytest", *sys.stdlib_module_names, *helpers}
    found = [f"{short(file)} imports {name}" for file in files for name in imported_first(file) if name not in brought]
    assert found == []


def test_no_torch_in_the_scheduler_nor_in_the_api_process():
    assert heavy_after_importing(FREE_OF_TORCH) == []


def test_torch_would_be_noticed():
    assert "torch" in heavy_after_importing(["atom_core.worker.model_runner"])


@pytest.mark.parametrize("folder", ["scheduler", "kv_cache", "messages"])
def test_no_file_of_the_scheduler_names_torch(folder: str):
    found = [
        f"{short(file)}:{line}"
        for file in source_files("atom_core")
        if folder in file.parts
        for module, line in imported_modules(file)
        if module.split(".")[0] in {"torch", "atom_kernels", "atom_models"} and module != "atom_kernels.protocols"
    ]
    assert found == []


def imported_first(file: Path) -> set[str]:
    """The packages that a file imports as soon as it is imported itself."""
    plain = {alias.name for node in tree(file).body if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module for node in tree(file).body if isinstance(node, ast.ImportFrom) and node.module}
    return {name.split(".")[0] for name in plain | named}


def heavy_after_importing(modules: list[str]) -> list[str]:
    code = (
        "import importlib, json, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(json.dumps(sorted({HEAVY!r} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
