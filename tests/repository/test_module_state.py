"""State that modules keep for the whole process: all that may change after import is listed, each with its reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from source_tree import MAY_IMPORT, ROOT, nodes, source_files, tree

# State that decides what happens next.
STATE = {
    "atom_kernels/aiter/sources.py: _PARSING": "Python 3.11 parses for one thread of the process at a time.",
    "atom_kernels/aiter/tables.py: _made": "Forms of a rotary table that AITER wants; they go with their table.",
    "atom_kernels/triton/compile_ahead.py: _one_at_a_time": "Triton's mode of compiling in threads is the process's.",
    "atom_kernels/triton/launch.py: _instead": "What a thread wants done instead of its launches; one for each.",
    "atom_kernels/opaque.py: _library": "torch knows operators by name for the whole process.",
    "atom_kernels/opaque.py: _registered": "Operators that torch knows already: to define one twice is an error.",
    "atom_kernels/plan.py: _handles": "Compiled graphs name plans by number; entries go with their plans.",
    "atom_kernels/plan.py: _next_handle": "Numbers of plans are not used twice.",
    "atom_kernels/platform/current.py: _in_use": "`explain --arch` and tests see another machine, in all threads.",
    "atom_kernels/recording/work.py: _recording": "Notes the calls of the work that runs now; each thread has its own.",
    "atom_kernels/select.py: _remembered": "Choices made while a model is built; each thread has its own.",
    "atom_models/fallback/attention.py: _recorder": "Takes the calls of a dry run; each thread has its own.",
    "atom_models/forward_context.py: _current": "The step that runs now; each thread has its own.",
    "atom_models/layers/mixture/exchange.py: _rows_of_engines": "Rows of engines in the step that runs now, by thread.",
    "atom_vllm/models/load_order.py: _digest": "vLLM's cache of graphs must tell the order in which numbers went.",
    "atom_vllm/register.py: _failure": "vLLM swallows the error of one entry point; the other must tell it.",
}

# Functions whose answers are kept: each gives the same answer for the same arguments as long as the process lives.
CACHES = {
    "atom_core/config/options.py: options_of": "The settings that a dataclass has.",
    "atom_core/structured_output/judge/judges.py: shared_judges": "Processes that judge grammars, for all engines.",
    "atom_core/structured_output/llguidance/trial.py: _bytes": "The vocabulary in which every byte is a token.",
    "atom_core/worker/ranks/copy_engine.py: _driver": "Calls of the CUDA driver.",
    "atom_kernels/adapters/triton_backend.py: _blocks_of_a": "How a launch cuts the A of adapters.",
    "atom_kernels/aiter/api.py: _by_name": "Functions of an API by their names.",
    "atom_kernels/aiter/api.py: known_api": "What a release of AITER offers, from a file of ours.",
    "atom_kernels/aiter/library.py: _library_of": "What the imported AITER offers, read from its sources.",
    "atom_kernels/aiter/sources.py: read_api": "What an installed AITER offers, read from its sources.",
    "atom_kernels/aiter/tables.py: no_rotation": "Cosines and sines that turn nothing, on a device.",
    "atom_kernels/aiter/tables.py: unit_scale": "A scale of one, on a device.",
    "atom_kernels/host_threads/openmp.py: torch_openmp": "torch's OpenMP library, as the process loaded it.",
    "atom_kernels/host_threads/openmp_spin.py: openmp_spin": "Where that library keeps how long threads spin.",
    "atom_kernels/host_threads/waiting.py: wait_policy": "How threads of this process wait for each other.",
    "atom_kernels/linear/quantized.py: _probe_once": "Whether torch multiplies int8 weights here.",
    "atom_kernels/linear/onednn.py: _probe_once": "Whether oneDNN packs weights here.",
    "atom_kernels/linear/triton/skinny_linear.py: _constants_of": "Constants of a kernel by the shape of adapters.",
    "atom_kernels/native/compiler.py: _compiler_version": "The version of a C compiler.",
    "atom_kernels/native/compiler.py: _cpu_flags": "What this CPU can do.",
    "atom_kernels/native/library.py: _open_once": "A library that is compiled from a C source of ours.",
    "atom_kernels/norm/triton_backend.py: _launch_options": "Warps for a row of so many elements on this GPU.",
    "atom_kernels/platform/current.py: _probe_once": "This machine.",
    "atom_kernels/recording/native_calls.py: _replay": "A function that is compiled from a C source of ours.",
    "atom_kernels/recording/operators.py: out_variant": "Which operator of torch writes into tensors that are there.",
    "atom_kernels/sampling/native_backend.py: _functions": "Functions of the compiled library.",
    "atom_kernels/triton/known_launches.py: known_launches": "What Triton compiled, by kernel and kinds of arguments.",
    "atom_kernels/triton/support.py: has_dependent_launch": "Whether this GPU starts kernels early.",
    "atom_kernels/tuned/store.py: _read": "A file of launch configurations.",
    "atom_kernels/tuned/store.py: triton_release": "The version of Triton.",
    "atom_kernels/tuned/store.py: tuned_on_arch": "What the files have for an architecture.",
    "atom_models/fallback/trial.py: _trial": "Whether a class of transformers passed its trial, by the kind of config.",
    "atom_models/layers/loadable.py: _own_weights": "Whether layers of a class own weights.",
    "atom_models/requirements/cache.py: _layout": "The layout of a problem's cache on a platform.",
    "atom_vllm/mixers/cache_view.py: _plan": "The plan of a problem on a platform.",
    "atom_vllm/mixers/keys_apart.py: _plan": "The plan of a problem on a platform.",
    "atom_vllm/mixers/state_layer.py: plan_states": "The plan of a problem on a platform.",
    "atom_vllm/mixers/latent_attention.py: plan_latent": "The plan of a problem.",
    "atom_vllm/models/model_wrapper.py: _make_class": "vLLM's class of an architecture, as vLLM gets it from us.",
    "atom_vllm/platform.py: make_platform": "vLLM's class of this platform, as vLLM gets it from us.",
}

# What these make changes in use; what other calls make at import is taken for constant until a function writes it.
HOLDERS = {
    "ContextVar", "Counter", "Condition", "Event", "Library", "Lock", "OrderedDict", "RLock", "Semaphore",
    "WeakIdKeyDictionary", "WeakKeyDictionary", "WeakSet", "WeakTensorKeyDictionary", "WeakValueDictionary",
    "count", "cycle", "defaultdict", "deque", "local", "sha256",
}  # fmt: skip
KEEPS_ANSWERS = {"cache", "lru_cache"}
WRITING_METHODS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault",
    "sort", "update",
}  # fmt: skip


def test_all_state_of_modules_is_known():
    found = {f"{place(file)}: {name}" for file in files() for name in state_of(file)}
    assert (found - set(STATE), set(STATE) - found) == (set(), set())


def test_all_caches_of_modules_are_known():
    found = {f"{place(file)}: {name}" for file in files() for name in caches_of(file)}
    assert (found - set(CACHES), set(CACHES) - found) == (set(), set())


def test_nothing_is_written_into_modules_of_others():
    found = [f"{place(file)}: {ast.unparse(node)}" for file in files() for node in writes_to_imported_modules(file)]
    assert found == []


@cache
def files() -> tuple[Path, ...]:
    return tuple(file for package in MAY_IMPORT for file in source_files(package))


def place(file: Path) -> str:
    """Where a module is, from its package on."""
    return file.relative_to(ROOT).as_posix().partition("/src/")[2]


def state_of(file: Path) -> set[str]:
    """What a module holds that is made to change, and what of it, of its classes or of our other modules is changed."""
    held = dict(values(file))
    holders = {name for name, value in held.items() if isinstance(value, ast.Call) and called(value) in HOLDERS}
    shared = {"cls", *held, *classes(file), *imported_from_us(file)}
    return holders | {name for function in outer_functions(file) for name in written_names(function) & shared}


def caches_of(file: Path) -> set[str]:
    """What keeps answers for the whole process. (What an object keeps, by `cached_property`, goes with the object.)"""
    made = {name for name, value in values(file) if isinstance(value, ast.Call) and called(value) in KEEPS_ANSWERS}
    return made | {
        node.name
        for node in nodes(tree(file))
        if isinstance(node, ast.FunctionDef) and any(called(item) in KEEPS_ANSWERS for item in node.decorator_list)
    }


def values(file: Path) -> Iterator[tuple[str, ast.expr | None]]:
    """What a module binds outside of functions and classes: (name, value)."""
    for node in statements(tree(file)):
        if isinstance(node, ast.Assign):
            yield from ((target.id, node.value) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.value


def classes(file: Path) -> Iterator[str]:
    return (node.name for node in nodes(tree(file)) if isinstance(node, ast.ClassDef))


def imported_from_us(file: Path) -> Iterator[str]:
    for node in nodes(tree(file)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in MAY_IMPORT:
            yield from (alias.asname or alias.name for alias in node.names)


def outer_functions(file: Path) -> Iterator[ast.AST]:
    """Functions of a module and methods of its classes, each with the functions inside of it."""
    for node in statements(tree(file)):
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield inner


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those of a module, and of its ``if``, ``try`` and ``with``."""
    for inner in ast.iter_child_nodes(node):
        yield inner
        if isinstance(inner, (ast.If, ast.Try, ast.With, ast.For, ast.ExceptHandler)):
            yield from statements(inner)


def written_names(function: ast.AST) -> set[str]:
    """Names that a function binds by ``global``, or changes in place without having bound them itself."""
    names: set[str] = set()
    own: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Global):
            names.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.arg) and node.arg != "cls":
            own.add(node.arg)
    return names | ({changed_in_place(node) or "" for node in ast.walk(function)} - own)


def changed_in_place(node: ast.AST) -> str | None:
    """The name of ``NAME[...] = x``, ``NAME.x = x``, ``NAME.append(x)``, ``next(NAME)``."""
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        return root(node.value) if isinstance(node.ctx, (ast.Store, ast.Del)) else None
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute):
        return root(node.func.value) if node.func.attr in WRITING_METHODS else None
    return root(node.args[0]) if node.args and called(node) in ("next", "setattr", "delattr") else None


def root(node: ast.expr) -> str | None:
    """``a`` of ``a``, ``a.b`` and ``a[0].b``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def called(node: ast.expr) -> str | None:
    """The last name of what is called or decorates: ``cache`` of ``functools.cache`` and ``lru_cache(maxsize=1)``."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def writes_to_imported_modules(file: Path) -> Iterator[ast.AST]:
    """``module.name = value``, wherever it stands."""
    imports = (node for node in nodes(tree(file)) if isinstance(node, ast.Import))
    modules = {(alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names}
    for node in nodes(tree(file)) if modules else ():
        if (
            isinstance(node, (ast.Attribute, ast.Subscript))
            and not isinstance(node.ctx, ast.Load)
            and root(node) in modules
        ):
            yield node
