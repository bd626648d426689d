"""`Executor` and `StepHandle`: how a step gets to workers and its tokens come back. Torch-free."""

from __future__ import annotations

from typing import Protocol

from atom_core.failure import Failure
from atom_core.messages import ModelOutput, NamedAdapter, SchedulerOutput
from atom_core.worker.runner import Masks, RunnerInfo


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

    def sleep(self, level: int) -> None:
        """Give the memory of weights and cache back while no request is open; level 1 keeps weights on the host."""
        ...

    def wake_up(self) -> None:
        """Take it again: the weights are those of before, and the cache is empty and as large."""
        ...

    def prepare(self) -> bool:
        """Use some ten idle milliseconds for what later steps would have to wait for; False if nothing is left.

        The first call takes seconds where kernels have yet to be compiled.
        """
        ...

    def load_adapter(self, adapter: NamedAdapter) -> None:
        """Have every worker read an adapter; AdapterError where it cannot be served, and then nobody has it."""
        ...

    def unload_adapter(self, adapter_id: int) -> None:
        """Let go of an adapter that no step from here on has."""
        ...

    @property
    def is_preparing(self) -> bool:
        """Whether a capture or a compilation runs; asked from any thread."""
        ...

    @property
    def failure(self) -> Failure | None:
        """What ended the workers, so that no step can run any more; None while they work. For any thread."""
        ...

    @property
    def stopped_ranks(self) -> tuple[int, ...]:
        """Workers that a signal has stopped, so that the others wait for them. For any thread."""
        ...

    def profile(self, *, start: bool) -> None:
        """Begin a trace in every worker, or end the traces and write them (see `TorchProfiler`)."""
        ...

    def shutdown(self) -> None:
        """Finish what runs, then let go of threads and memory."""
        ...
