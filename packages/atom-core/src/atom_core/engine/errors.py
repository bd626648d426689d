"""What can go wrong with a request, with starting, and with a running engine."""

from __future__ import annotations


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


class EngineStartError(RuntimeError):
    """The engine could not start; the last line of the message is the cause."""


class EngineDeadError(RuntimeError):
    """The engine stopped working; the message says what is known of why."""


class ProfilerError(RuntimeError):
    """Profiling was asked for where it cannot be done; the message says what to set."""
