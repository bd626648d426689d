"""Loads a packaged C source as a library: compiled once per machine, sharing torch's thread pool."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace

from atom_kernels import settings
from atom_kernels.host_threads.openmp import torch_openmp
from atom_kernels.native.compiler import CompileError, compiled_library
from atom_kernels.recording import recordable

# One letter an argument, in signatures such as "pplf".
_C_TYPES = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int32,
    "l": ctypes.c_int64,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
}


class NativeUnavailableError(RuntimeError):
    """A native library cannot be used on this machine; the message is the reason, in one line."""


def load_native(name: str, signatures: Mapping[str, str]) -> SimpleNamespace:
    """The functions of ``native/<name>.c``, compiled if need be, with their argument types set.

    Args:
        name: the source's name without its suffix, e.g. ``"attention"``.
        signatures: a letter for each argument of a function: ``p`` pointer (pass ``tensor.data_ptr()``),
            ``i`` int32, ``l`` int64, ``f`` float, ``d`` double; ``"pl->l"`` returns an int64, else nothing.

    Raises:
        NativeUnavailableError: the library is disabled, does not compile, or would bring a second thread pool.
    """
    library = _open(name)
    if isinstance(library, str):
        raise NativeUnavailableError(library)
    functions = {}
    for function_name, signature in signatures.items():
        arguments, _, result = signature.partition("->")
        function = library[function_name]
        function.argtypes = [_C_TYPES[letter] for letter in arguments]
        function.restype = _C_TYPES[result] if result else None
        functions[function_name] = recordable(function)
    return SimpleNamespace(**functions)


def native_unavailable(name: str = "probe") -> str | None:
    """None when ``native/<name>.c`` is usable here (compiling it if need be), else the reason in one line."""
    library = _open(name)
    return library if isinstance(library, str) else None


def _open(name: str) -> ctypes.CDLL | str:
    # Asked each time, so that a test or a caller may disable the native kernels after a library was loaded.
    return "disabled by ATOM_DISABLE_NATIVE" if settings.native_disabled() else _open_once(name)


@cache
def _open_once(name: str) -> ctypes.CDLL | str:
    try:
        library = ctypes.CDLL(str(compiled_library(name)))
    except CompileError as error:
        return str(error)
    except OSError as error:
        # Typically OpenMP symbols that no library of this process provides.
        return f"the compiled {name} kernels do not load: {str(error).splitlines()[0]}"
    library.atom_openmp_runtime.restype = ctypes.c_void_p
    if library.atom_openmp_runtime() != _address_of_torch_openmp():
        return f"the {name} kernels would use another OpenMP runtime than torch, and with it a second thread pool"
    return library


def _address_of_torch_openmp() -> int | None:
    openmp = torch_openmp()
    return None if openmp is None else ctypes.cast(openmp.omp_get_max_threads, ctypes.c_void_p).value
