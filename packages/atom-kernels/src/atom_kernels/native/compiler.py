"""Compiles one packaged C source into the user's cache, keyed by all that its machine code depends on."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from atom_kernels import settings

SOURCES = Path(__file__).parent
_COMPILE_FLAGS = (
    *("-O3", "-march=native", "-fopenmp", "-fPIC", "-std=gnu11"),
    *("-fno-math-errno", "-fno-trapping-math", "-Wall"),
)
# Without -fopenmp or -lgomp: OpenMP must come from the runtime that torch has already loaded.
_LINK_FLAGS = ("-shared",)
_TIMEOUT_SECONDS = 120


class CompileError(RuntimeError):
    """The source cannot be compiled here; the message is the reason, in one line."""


def compiled_library(name: str) -> Path:
    """The shared library of ``<name>.c``, from the cache or compiled now.

    Raises:
        CompileError: no compiler, a compiler that fails, or a cache folder that cannot be written.
    """
    source = SOURCES / f"{name}.c"
    compiler = _compiler()
    folder = settings.native_cache_dir()
    target = folder / f"{name}-{_key(source, compiler)}.so"
    if target.exists():
        return target
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f"{name}-") as scratch:
            _compile(compiler, source, Path(scratch))
            # Processes may race to here: each moves a whole file into place, and the last one wins.
            os.replace(Path(scratch) / "library.so", target)
    except OSError as error:
        raise CompileError(f"cannot write compiled kernels to {folder}: {error.strerror or error}") from error
    return target


def _compile(compiler: str, source: Path, scratch: Path) -> None:
    compiled = str(scratch / "library.o")
    _run([compiler, *_COMPILE_FLAGS, "-c", str(source), "-o", compiled], source)
    _run([compiler, *_LINK_FLAGS, compiled, "-o", str(scratch / "library.so"), "-lm"], source)


def _run(command: list[str], source: Path) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise CompileError(f"{command[0]} took over {_TIMEOUT_SECONDS} s to compile {source.name}") from error
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error:" in line] or done.stderr.splitlines()
        raise CompileError(f"{command[0]} cannot compile {source.name}: {errors[0] if errors else 'no message'}")


def _key(source: Path, compiler: str) -> str:
    digest = hashlib.sha256()
    for path in (source, *sorted(SOURCES.glob("*.[ch]"))):
        digest.update(path.read_bytes())
    digest.update("\0".join((*_COMPILE_FLAGS, *_LINK_FLAGS, _compiler_version(compiler), _cpu_flags())).encode())
    return digest.hexdigest()[:20]


def _compiler() -> str:
    name = settings.native_compiler()
    found = shutil.which(name)
    if found is None:
        raise CompileError(f"no C compiler: {name!r} is not on the PATH (install gcc or clang, or set CC)")
    return found


@cache
def _compiler_version(compiler: str) -> str:
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompileError(f"{compiler} does not run: {error}") from error
    return f"{compiler} {done.stdout}"


@cache
def _cpu_flags() -> str:
    """What ``-march=native`` looks at, so that a cache shared by unlike machines never gives illegal instructions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")
    picked = {line.split(":")[0].strip(): line for line in reversed(lines) if line.split(":")[0].strip() in wanted}
    return f"{platform.machine()} {sorted(picked.values())}"
