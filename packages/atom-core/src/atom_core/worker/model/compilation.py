"""Compile levels: what torch makes of a model before it runs, and where that is kept.

Operators of ours are opaque to the compiler: it sees one node for each, and can fuse only what lies between them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from atom_core import settings
from atom_core.config.sections import EngineConfig
from atom_core.worker.devices.factory import device_of
from atom_core.worker.model.compiled_where_written import CompiledWhereWritten, warn_uncompiled
from atom_models.layers.mixers.mixer import MIX_OPERATOR

EAGER, TRACED, WHOLE, PIECEWISE = range(4)
# What a compiled model calls; a change there makes the artefacts of before useless.
OUR_SOURCES = ("atom_kernels", "atom_models")


def compile_model(model: Any, config: EngineConfig, rank: int = 0) -> Any:
    """A rank's part of a model as `config.compile.level` asks, compiled at its first call, for any number of tokens.

    Levels: 0 leaves it as it is; 1 traces it as one graph and runs that; 2 has inductor compile the graph;
    3 has inductor compile the pieces between attention layers.
    """
    level = config.compile.level
    if level == EAGER:
        return model
    if level > TRACED:
        # First of all: torch settles on a folder of its own as soon as it loads its compiler.
        try:
            folder = settings.keep_compiled_in(artefacts_folder(config, rank))
        except OSError as error:
            warn_uncompiled(error.filename, error.strerror)
            return model
    # The compiler counts what it made of a function, whatever model it was for, and gives up after a few: count anew.
    torch.compiler.reset()
    if level == TRACED:
        return torch.compile(model, fullgraph=True, dynamic=True, backend="eager")
    options = {"graph_partition": True, "custom_should_partition_ops": [MIX_OPERATOR]} if level == PIECEWISE else None
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="inductor", options=options)
    return CompiledWhereWritten(compiled, model, folder)


class CompilationWatch:
    """Sees when a step waits for torch, or for Triton, to compile or to load what was compiled before.

    Attributes:
        is_running: a model is being compiled.
        num_late: how often something was compiled or loaded while a step waited for it.
    """

    def __init__(self) -> None:
        self.is_running, self.num_late = False, 0
        self._is_early = False

    def watch_torch(self) -> None:
        """Ask torch to tell of every compilation."""
        from torch._dynamo.callback import callback_handler  # takes seconds, which only those who compile have to wait

        callback_handler.register_start_callback(partial(self._set, True))
        callback_handler.register_end_callback(partial(self._set, False))

    def watch_triton(self) -> None:
        """Ask Triton to tell of every kernel that this thread meets for the first time."""
        from atom_kernels.triton.compile_watch import watch_compilations

        watch_compilations(self._count)

    @contextmanager
    def early(self) -> Iterator[None]:
        """Within, what is compiled keeps no step waiting."""
        self._is_early = True
        try:
            yield
        finally:
            self._is_early = False

    def _set(self, is_running: bool, *_: object) -> None:
        self.is_running = is_running
        if is_running:
            self._count()

    def _count(self) -> None:
        self.num_late += not self._is_early


def artefacts_folder(config: EngineConfig, rank: int = 0) -> Path:
    """Where inductor's files for this model, rank, machine, torch and source of ours are kept."""
    return settings.cache_dir() / "compiled" / _key(config, rank)


def _key(config: EngineConfig, rank: int) -> str:
    # When it is compiled changes nothing of it.
    model, compiled, parallel = config.model, replace(config.compile, warmup="none"), config.parallel
    facts = [
        *(str(part) for part in (model.architecture, model.dtype, model.max_model_len, config.cache, compiled)),
        _digest([model.path / "config.json"]),
        f"rank {rank} of {parallel.tensor_parallel_size} in {parallel.pipeline_parallel_size} stages",
        "whole experts" if parallel.enable_expert_parallel else "all experts",
        device_of(config.device).describe(),
        torch.__version__,
        version("triton") if find_spec("triton") else "no triton",
        *(_digest(sorted(_folder_of(package).rglob("*.py"))) for package in OUR_SOURCES),
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:24]


def _folder_of(package: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ImportError(f"{package} has no folder of sources")
    return Path(found.origin).parent


def _digest(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        if file.is_file():
            digest.update(file.read_bytes())
    return digest.hexdigest()
