"""A disk that takes no more costs what would have been written there, and nothing else; one line says so."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from atom_core import LLMEngine, SamplingParams
from atom_core.config import EngineArgs
from atom_core.engine.startup import open_model, resolve
from atom_core.worker.model.compilation import artefacts_folder, compile_model
from atom_core.worker.model.compiled_where_written import CompiledWhereWritten

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
PROMPTS = [list(range(start, start + 100)) for start in (5, 205, 105, 5, 205)]
# Twelve blocks of 16 tokens: each of the prompts pushes out the one before it.
SMALL: dict[str, Any] = {"num_kv_blocks": 12, "max_model_len": 160}


@pytest.fixture
def short_files() -> Iterator[None]:
    """No file of this process grows beyond 20 KB: the kernel says so as it does of a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def tokens_of(engine: LLMEngine) -> list[list[int]]:
    return [engine.generate([prompt], GREEDY, use_tqdm=False)[0]["token_ids"] for prompt in PROMPTS]


@pytest.mark.usefixtures("short_files")
def test_blocks_that_find_no_room_on_the_disk_are_told_of_once_and_no_token_changes(
    make_engine: Callable[..., LLMEngine], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    expected = tokens_of(make_engine(**SMALL))
    folder = {"kv_offload_memory": "192KiB", "kv_offload_folder": str(tmp_path), "kv_offload_disk": "4MiB"}
    assert tokens_of(make_engine(**SMALL, **folder)) == expected
    [told] = [message for message in caplog.messages if "KV cache" in message]
    assert f"cannot be written to {tmp_path}" in told
    assert "File too large" in told
    assert "free some space" in told


def no_room(*_: object) -> None:
    raise RuntimeError(f"InductorError: OSError: {OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))}")


def test_a_model_whose_compiled_code_finds_no_room_runs_uncompiled_and_says_so_once(caplog: pytest.LogCaptureFixture):
    run = CompiledWhereWritten(no_room, lambda number: number + 1, Path("/cache"))
    assert [run(1), run(2)] == [2, 3]
    [told] = caplog.messages
    assert "cannot be written to /cache: No space left on device. The model runs uncompiled" in told
    assert "set ATOM_CACHE_DIR" in told


def test_other_failures_of_a_compiled_model_are_not_hidden():
    def fail() -> None:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        CompiledWhereWritten(fail, list, Path("/cache"))()
    with pytest.raises(RuntimeError, match="No space left"):
        CompiledWhereWritten(no_room, no_room, Path("/cache"))()


@pytest.fixture
def torch_without_compiler(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Compiles nothing; where torch would keep its files, which it settles on as soon as its compiler is loaded."""
    settled: list[str | None] = []
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setattr(torch.compiler, "reset", lambda: settled.append(os.environ.get("TORCHINDUCTOR_CACHE_DIR")))
    monkeypatch.setattr(torch, "compile", lambda model, **_: model)
    return settled


def test_torch_keeps_what_it_compiles_in_our_folder(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torch_without_compiler: list[str | None]
):
    monkeypatch.setenv("ATOM_CACHE_DIR", str(tmp_path))
    args = EngineArgs(model=str(tiny_llama), level=2)
    config = resolve(args, open_model(args))
    compile_model(list, config)
    assert torch_without_compiler == [str(artefacts_folder(config))]
    assert artefacts_folder(config).is_relative_to(tmp_path)


@pytest.mark.usefixtures("torch_without_compiler")
def test_a_cache_folder_that_cannot_be_made_leaves_the_model_uncompiled(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("ATOM_CACHE_DIR", "/proc/no/such/folder")
    args = EngineArgs(model=str(tiny_llama), level=3)
    assert compile_model(list, resolve(args, open_model(args))) is list
    [told] = [message for message in caplog.messages if "compiled code" in message]
    assert "set ATOM_CACHE_DIR" in told
