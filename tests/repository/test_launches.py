"""Every launch of a Triton kernel goes through `atom_kernels.triton.launch`, which may prepare kernels instead."""

from __future__ import annotations

import ast
from pathlib import Path

from source_tree import MAY_IMPORT, nodes, package_folder, product_files, short, source_files, tree

DOOR = package_folder("atom_kernels") / "src/atom_kernels/triton/launch.py"
# One launches what the door hands on, the other has the kernel prepare what `launch` was called with.
MAY_RUN_KERNELS = {DOOR, DOOR.with_name("known_launches.py"), DOOR.with_name("compile_ahead.py")}
FILES = [file for package in MAY_IMPORT for file in source_files(package)]


def compiled_functions(file: Path) -> set[str]:
    """The functions of a file that Triton compiles."""
    return {
        node.name
        for node in nodes(tree(file))
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator).startswith(("triton.jit", "gluon.jit")) for decorator in node.decorator_list)
    }


def imported_names(file: Path) -> set[str]:
    return {alias.name for node in nodes(tree(file)) if isinstance(node, ast.ImportFrom) for alias in node.names}


def launches_itself(node: ast.Subscript | ast.Call, kernels: set[str]) -> bool:
    """Whether it is ``kernel[grid]``, ``self._kernel[grid](...)`` or ``kernel.run(..., grid=...)``."""
    if isinstance(node, ast.Subscript):
        return ast.unparse(node.value) in kernels
    # A function out of a table is called so as well: tables are constants, in capitals.
    takes_grid = isinstance(node.func, ast.Subscript) and not ast.unparse(node.func.value).isupper()
    # An engine has a setting of that name, too.
    runs = isinstance(node.func, ast.Attribute) and node.func.attr == "run"
    return takes_grid or any(keyword.arg == "grid" or (runs and keyword.arg == "warmup") for keyword in node.keywords)


def launches_of(file: Path, compiled: set[str]) -> list[str]:
    """The launches of a file that do not go through the door; `compiled` are the kernels of all files."""
    kernels = compiled & (imported_names(file) | compiled_functions(file))
    return [
        f"{short(file)}:{node.lineno}: {ast.unparse(node)}"
        for node in nodes(tree(file))
        if isinstance(node, (ast.Subscript, ast.Call)) and launches_itself(node, kernels)
    ]


def test_no_launch_bypasses_the_door():
    compiled = set().union(*map(compiled_functions, FILES))
    assert {"rms_norm_kernel", "share_apart", "hopper_prefill_kernel", "build_inputs_kernel"} <= compiled
    assert [launch for file in FILES if file not in MAY_RUN_KERNELS for launch in launches_of(file, compiled)] == []


def test_nothing_of_triton_is_patched():
    found = [
        f"{short(file)}:{node.lineno}: {ast.unparse(node)}"
        for file in product_files()
        for node in nodes(tree(file))
        if isinstance(node, ast.Assign)
        and any(ast.unparse(target).startswith(("JITFunction.", "triton.")) for target in node.targets)
    ]
    assert found == []
