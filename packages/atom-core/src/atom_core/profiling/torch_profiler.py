"""`TorchProfiler`: traces of the worker, gzipped, in a folder for each rank."""

from __future__ import annotations

import gzip
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atom_core.config.sections import ProfilerConfig
from atom_core.errors import ProfilerError

if TYPE_CHECKING:
    import torch

NO_DIRECTORY = (
    "profiling needs a folder for its traces: start the engine with torch_profiler_dir (--torch-profiler-dir DIR), "
    "or set ATOM_TORCH_PROFILER_DIR"
)


class TorchProfiler:
    """Records what the thread that calls `start` and `stop` runs between them.

    Traces are written to ``{directory}/{name}/*.pt.trace.json.gz``, for TensorBoard and chrome://tracing.

    Args:
        config: where traces go, and what they hold.
        name: the rank's, such as "rank_0" (`ParallelConfig.name_of`).

    Attributes:
        mark: ``with mark(name)`` names what runs inside, in a trace that is being recorded with `mark_trace`.
    """

    mark: Callable[[str], AbstractContextManager[Any]]

    def __init__(self, config: ProfilerConfig, name: str) -> None:
        self._config = config
        self._name = name
        self._profile: torch.profiler.profile | None = None
        self.mark = nullcontext

    def start(self) -> None:
        """Begin a trace.

        Raises:
            ProfilerError: no directory was given, or a trace is being recorded already.
        """
        import torch

        if self._config.directory is None:
            raise ProfilerError(NO_DIRECTORY)
        if self._profile is not None:
            raise ProfilerError("a profile is being recorded already: stop it first")
        folder = self.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ProfilerError(f"traces cannot be written to {folder}: {error.strerror}") from error
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        more = self._config.more
        profile = torch.profiler.profile(
            activities=activities, record_shapes=more, with_stack=more, profile_memory=more
        )
        profile.start()
        self._profile = profile
        if self._config.mark_trace:
            self.mark = torch.profiler.record_function

    def stop(self) -> Path:
        """End the trace, write it, and return its file.

        Raises:
            ProfilerError: nothing is being recorded.
        """
        if self._profile is None:
            raise ProfilerError(
                NO_DIRECTORY if self._config.directory is None else "no profile is being recorded: start one first"
            )
        profile, self._profile, self.mark = self._profile, None, nullcontext
        profile.stop()
        stem = self.folder / f"{socket.gethostname()}_{os.getpid()}.{time.time_ns()}.pt.trace.json"
        profile.export_chrome_trace(str(stem))
        path = stem.with_name(stem.name + ".gz")
        with stem.open("rb") as plain, gzip.open(path, "wb", compresslevel=5) as packed:
            shutil.copyfileobj(plain, packed)
        stem.unlink()
        return path

    @property
    def folder(self) -> Path:
        """Where this rank's traces go."""
        return Path(self._config.directory or ".") / self._name
