"""Native kernels compile at first use, are kept, and are passed over with a reason where they cannot be had."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap

import pytest

from atom_kernels import settings
from atom_kernels.native import NativeUnavailableError, compiler, load_native, native_unavailable
from forked_ranks import fork

needs_compiler = pytest.mark.skipif(native_unavailable() is not None, reason=f"native kernels: {native_unavailable()}")


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_no_compiler_and_one_that_fails_are_reasons_and_no_exceptions_the_first_says_what_to_install(tmp_path):
    code = """
        import os
        from atom_kernels.native import native_unavailable
        print(native_unavailable("probe"))
        os.environ["CC"] = "false"
        print(native_unavailable("norm"))
    """
    said = run_python(code, CC="no-such-compiler", XDG_CACHE_HOME=str(tmp_path), ATOM_DISABLE_NATIVE="")
    none, failing = said.splitlines()
    assert "no-such-compiler" in none
    assert "install" in none
    assert "cannot compile norm.c" in failing


@needs_compiler
@pytest.mark.parametrize("name", sorted(source.stem for source in compiler.SOURCES.glob("*.c")))
def test_every_source_of_ours_compiles(name):
    assert native_unavailable(name) is None


def test_disabled_native_kernels_are_not_loaded(monkeypatch):
    monkeypatch.setenv("ATOM_DISABLE_NATIVE", "1")
    assert native_unavailable() == "disabled by ATOM_DISABLE_NATIVE"
    with pytest.raises(NativeUnavailableError, match="ATOM_DISABLE_NATIVE"):
        load_native("sampling", {})


def test_everything_is_chosen_from_torch_when_native_kernels_are_disabled():
    code = """
        import torch
        from atom_kernels.attention import AttentionProblem
        from atom_kernels.mixers import CacheFormat, select_mixer
        from atom_kernels.sampling import SAMPLE_SLOTS, SlotSamplingProblem
        from atom_kernels.select import select
        plan = select_mixer(AttentionProblem(2, 1, 16, 0.25, "float32", CacheFormat("float32"), 4))
        none = torch.zeros(1)
        tables = (none, none.int(), none + 1, none, none.long(), none.long())
        token = select(SAMPLE_SLOTS, SlotSamplingProblem(2, True))(torch.tensor([[0.0, 9.0]]), none, none, *tables)
        print(plan.backend, dict(plan.reasons)["native"], token.item())
    """
    assert run_python(code, ATOM_DISABLE_NATIVE="1") == "torch disabled by ATOM_DISABLE_NATIVE 1"


@needs_compiler
def test_a_library_is_compiled_once_and_then_taken_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = compiler.compiled_library("probe")
    written = first.stat().st_mtime_ns
    assert compiler.compiled_library("probe") == first
    assert first.stat().st_mtime_ns == written
    # Nothing but finished libraries is left behind.
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_compiled_kernels_lie_where_all_caches_are_asked_to(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "others"))
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path / "ours"))
    assert settings.native_cache_dir() == tmp_path / "ours" / "native"
    monkeypatch.setenv("ATOM_CACHE_DIR", "")
    assert settings.native_cache_dir() == tmp_path / "others" / "atom" / "native"


@needs_compiler
def test_another_source_makes_another_library(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "SOURCES", tmp_path)
    (tmp_path / "answer.c").write_text("int answer(void) { return 41; }")
    first = compiler.compiled_library("answer")
    (tmp_path / "answer.c").write_text("int answer(void) { return 42; }")
    second = compiler.compiled_library("answer")
    assert [ctypes.CDLL(str(path)).answer() for path in (first, second)] == [41, 42]


@needs_compiler
def test_a_syntax_error_names_the_file_and_the_line(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiler, "SOURCES", tmp_path)
    (tmp_path / "broken.c").write_text("int broken(void) { return }")
    with pytest.raises(compiler.CompileError, match=r"broken\.c:1"):
        compiler.compiled_library("broken")


@needs_compiler
def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path, monkeypatch):
    (tmp_path / "atom").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(compiler.CompileError, match="cannot write compiled kernels to"):
        compiler.compiled_library("probe")


@needs_compiler
def test_processes_that_race_for_a_library_all_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    racing = [fork(lambda: ctypes.CDLL(str(compiler.compiled_library("probe"))).atom_openmp_runtime) for _ in range(2)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in racing] == [0, 0]


@needs_compiler
def test_native_kernels_share_the_thread_pool_of_torch():
    # In a process of its own: libraries that other tests load bring their own runtime.
    code = """
        import torch
        from atom_kernels.native import load_native
        load_native("sampling", {})
        with open("/proc/self/maps", encoding="utf-8") as file:
            print(len({line.split()[-1] for line in file if "libgomp" in line or "libiomp" in line}))
    """
    assert run_python(code) == "1"
