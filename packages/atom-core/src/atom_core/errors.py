"""What can go wrong with a request, with starting, and with a running engine."""

from __future__ import annotations

from atom_core.failure import Failure
from atom_models.adapters.errors import AdapterError as AdapterError


class InvalidRequestError(ValueError):
    """A request that cannot be served as it stands; it never reaches the engine.

    Attributes:
        message: names the offender, what was allowed, and what to do.
        param: the parameter at fault, by its name in `SamplingParams` or "prompt"; None where there is no single one.
        code: machine-readable kind, e.g. "context_length_exceeded", "invalid_value", "empty_prompt", "queue_full".
    """

    def __init__(self, message: str, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class EngineFailedError(RuntimeError):
    """The engine failed; the message is the cause, in one line.

    Attributes:
        failure: the kind of failure, and where the full trace is.
    """

    def __init__(self, failure: Failure | str) -> None:
        self.failure = Failure("engine", failure) if isinstance(failure, str) else failure
        super().__init__(self.failure.cause)


class EngineStartError(EngineFailedError):
    """The engine could not start."""


class EngineDeadError(EngineFailedError):
    """The engine stopped working."""


class EngineAsleepError(RuntimeError):
    """The engine sleeps: it has given its memory back, and takes no request before it is woken up."""


class EngineBusyError(RuntimeError):
    """Requests are open, or the engine sleeps already, where neither may be; the message says what to do."""


class ProfilerError(RuntimeError):
    """Profiling was asked for where it cannot be done; the message says what to set."""
