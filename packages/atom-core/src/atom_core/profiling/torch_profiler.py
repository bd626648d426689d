"""`TorchProfiler`: traces of the worker, gzipped, in a folder for each rank."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from atom_core.config.sections import ProfilerConfig
from atom_core.errors import ProfilerError
from atom_core.profiling.marked_graphs import MarkedGraphs
from atom_core.profiling.module_marks import ModuleMarks
from atom_core.profiling.trace_files import events_of, write_events, write_trace

if TYPE_CHECKING:
    import torch

NO_DIRECTORY = (
    "profiling needs a folder for its traces: start the engine with torch_profiler_dir (--torch-profiler-dir DIR), "
    "or set ATOM_TORCH_PROFILER_DIR"
)
# A trace that nobody began ends after so many steps, and the next one waits until it is written: with 36 layers and
# each module named, 512 steps had kept a server's streams waiting for 17 s.
MOST_STEPS = 64
# Begins the mark of what is captured by one call, and of its replays.
GRAPHS = "graphs"
# What tells which module launched each kernel of a graph.
_OF_CAPTURES = ("user_annotation", "cuda_runtime", "cuda_driver")

CaptureT = TypeVar("CaptureT", bound=Callable[..., Any])


class TorchProfiler:
    """Records what the thread that calls `start` and `stop` runs between them.

    Traces are written to ``{directory}/{name}/{model}_ts_{time}.pt.trace.json.gz``, for `atom trace`, TensorBoard and
    chrome://tracing. With `mark_trace` modules are named in them. Where nobody asks for a trace then, one is recorded
    of the first `MOST_STEPS` steps. What graphs were captured of is a trace of its own,
    ``capture_ts_{time}.json.gz``.

    Args:
        config: where traces go, and what they hold.
        name: the rank's, such as "rank_0" (`ParallelConfig.name_of`).
        model: its name begins that of each trace.

    Attributes:
        mark: ``with mark(name)`` names what runs inside, in a trace that is being recorded with `mark_trace`.
        modules: what is marked; set once the model is loaded.
    """

    mark: Callable[[str], AbstractContextManager[Any]]

    def __init__(self, config: ProfilerConfig, name: str, model: str = "model") -> None:
        self._config = config
        self._name, self._model = name, re.sub(r"[^\w.-]+", "_", Path(model).name) or "model"
        self._profile: torch.profiler.profile | None = None
        self._marks: ModuleMarks | None = None
        self._of_captures: list[dict[str, Any]] = []
        self._steps_left = MOST_STEPS if config.mark_trace and config.directory is not None else 0
        self.mark = nullcontext
        self.modules: Mapping[str, torch.nn.Module] = {}

    def start(self) -> None:
        """Begin a trace.

        Raises:
            ProfilerError: no directory was given, or a trace is being recorded already.
        """
        if self._config.directory is None:
            raise ProfilerError(NO_DIRECTORY)
        if self._steps_left and self._profile is not None:
            # Nobody asked for it; only what it tells of captures is needed.
            self._of_captures += _around_captures(events_of(self._end(), _OF_CAPTURES))
        self._steps_left = 0
        if self._profile is not None:
            raise ProfilerError("a profile is being recorded already: stop it first")
        self._begin()

    def stop(self) -> Path:
        """End the trace, write it, and return its file.

        Raises:
            ProfilerError: nothing is being recorded.
        """
        if self._profile is None:
            raise ProfilerError(
                NO_DIRECTORY if self._config.directory is None else "no profile is being recorded: start one first"
            )
        self._steps_left = 0
        return self._write(self._end())

    def count_step(self) -> Path | None:
        """A step begins: where nobody asked for a trace and `mark_trace` is set, the first one begins one by itself.

        Returns:
            The file, where that trace ended.
        """
        if not self._steps_left:
            return None
        if self._profile is None:
            self._begin()
        self._steps_left -= 1
        return None if self._steps_left else self._write(self._end())

    def close(self) -> list[Path]:
        """Write what is being recorded, and what was captured; the files."""
        files = [] if self._profile is None else [self.stop()]
        if self._of_captures:
            path = self._path("capture", ".json.gz")
            files.append(write_events(self._of_captures, path))
            self._of_captures = []
        return files

    def around_captures(self, capture: CaptureT) -> CaptureT:
        """The same, noting which module launches what while graphs are captured; with `mark_trace` alone.

        The graphs of one call have a name, which marks their capture and each replay.
        """
        if not self._config.mark_trace or self._config.directory is None:
            return capture

        numbers = itertools.count()

        def watched(*arguments: Any, **keywords: Any) -> MarkedGraphs:
            name = f"{GRAPHS} {next(numbers)}"

            def marked() -> MarkedGraphs:
                with self.mark(name):
                    captured = capture(*arguments, **keywords)
                return MarkedGraphs(captured, lambda: self.mark(name))

            if self._profile is not None:  # it has the capture too
                return marked()
            profile = self._record(more=False)
            try:
                return marked()
            finally:
                self._of_captures += events_of(self._end(profile), _OF_CAPTURES)

        return watched  # type: ignore[return-value]

    def is_marking(self) -> bool:
        """Whether a trace that is being recorded names modules."""
        return self._marks is not None

    @property
    def folder(self) -> Path:
        """Where this rank's traces go."""
        return Path(self._config.directory or ".") / self._name

    def _begin(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ProfilerError(f"traces cannot be written to {self.folder}: {error.strerror}") from error
        self._profile = self._record(more=self._config.more)
        if self._config.mark_trace:
            # Imported here: the API process has no torch.
            from atom_models.requirements.module_matrices import module_matrices

            self._profile.add_metadata_json("atom_matrices", json.dumps(module_matrices(self.modules)))

    def _record(self, *, more: bool) -> torch.profiler.profile:
        import torch

        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profile = torch.profiler.profile(
            activities=activities, record_shapes=more, with_stack=more, profile_memory=more
        )
        profile.start()
        if self._config.mark_trace:
            self.mark, self._marks = torch.profiler.record_function, ModuleMarks(self.modules)
        return profile

    def _end(self, profile: torch.profiler.profile | None = None) -> torch.profiler.profile:
        if profile is None:
            profile, self._profile = self._profile, None
        if profile is None:
            raise ProfilerError("no profile is being recorded: start one first")
        if self._marks is not None:
            self._marks.remove()
        self.mark, self._marks = nullcontext, None
        profile.stop()
        return profile

    def _write(self, profile: torch.profiler.profile) -> Path:
        return write_trace(profile, self._path(self._model, ".pt.trace.json.gz"))

    def _path(self, stem: str, ending: str) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / f"{stem}_ts_{time.strftime('%Y%m%d_%H%M%S')}_{time.time_ns() % 10**9:09d}{ending}"


def _around_captures(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, where a graph was captured among them."""
    return events if any("StreamBeginCapture" in event["name"] for event in events) else []
