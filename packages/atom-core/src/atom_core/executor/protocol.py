"""`Executor`, `StepHandle` and `Runner`: how a step gets to the device and its tokens come back. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from atom_core.engine.failure import Failure
from atom_core.messages import ModelOutput, SchedulerOutput
from atom_kernels.protocols import GroupSpec, Pages

Masks = Mapping[str, Any]
"""By request id, tokens that may be sampled: int32 ``[ceil(vocab / 32)]``, bit ``i % 32`` of word ``i // 32``."""


class RunnerInfo(msgspec.Struct, frozen=True):
    """What a runner worked out while it loaded.

    Attributes:
        num_blocks, max_model_len: blocks of the KV cache, and tokens of the longest request that it lets in.
        groups: what each group of layers keeps. Those with blocks draw from the same ones.
        timings: seconds of each phase, by name.
        num_slots, num_snapshots: slots for the states of requests, and for states behind cached prefixes.
        choices: a line for each value that was chosen for the user.
        launches: a device computes by itself what the runner launches there.
    """

    num_blocks: int
    max_model_len: int
    groups: tuple[GroupSpec, ...] = (Pages(),)
    timings: dict[str, float] = {}
    choices: list[str] = []
    num_slots: int = 0
    num_snapshots: int = 0
    launches: bool = False


PendingOutput = Callable[[], ModelOutput]
"""Waits, in any thread, for the results of a step that was launched; raises what went wrong on the device."""


class StepHandle(Protocol):
    """One step on its way."""

    def sample(self, masks: Masks | None = None) -> None:
        """Release the sampler; `masks` only where rows have a grammar. Must be called before the next submit."""
        ...

    def wait_for_launch(self) -> None:
        """Wait until the device has begun, or is about to; for nothing where the worker itself computes."""
        ...

    def result(self) -> ModelOutput:
        """Wait for the step's tokens; raises what the step raised."""
        ...


class Executor(Protocol):
    """Runs steps in the order in which they are submitted."""

    def start(self) -> RunnerInfo:
        """Load the model and allocate the cache."""
        ...

    def submit(self, step: SchedulerOutput) -> StepHandle:
        """Start a step and return at once."""
        ...

    def prepare(self) -> bool:
        """Use some ten idle milliseconds for what later steps would have to wait for; False if nothing is left.

        The first call takes seconds where kernels have yet to be compiled.
        """
        ...

    @property
    def is_preparing(self) -> bool:
        """Whether a capture or a compilation runs; asked from any thread."""
        ...

    @property
    def failure(self) -> Failure | None:
        """What ended the workers, so that no step can run any more; None while they work. For any thread."""
        ...

    def profile(self, *, start: bool) -> None:
        """Begin a trace in every worker, or end the traces and write them (see `TorchProfiler`)."""
        ...

    def shutdown(self) -> None:
        """Finish what runs, then let go of threads and memory."""
        ...


class Runner(Protocol):
    """What one worker does; an executor calls it from one thread, `forward` and `sample` in turn.

    On a device that computes by itself both return once the work is launched, so that steps queue up there.
    """

    def load(self) -> RunnerInfo: ...
    def forward(self, step: SchedulerOutput) -> None: ...
    def sample(self, masks: Masks | None) -> PendingOutput: ...
    def prepare(self) -> bool: ...
    @property
    def is_preparing(self) -> bool: ...
    def profile(self, *, start: bool) -> None: ...
