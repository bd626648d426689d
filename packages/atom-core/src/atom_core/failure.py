"""`Failure`: why an engine, or a whole program, could not start or go on. Torch-free, crosses processes."""

from __future__ import annotations

import errno
import signal
import tempfile
import traceback
from typing import Literal

import msgspec

from atom_core.config.options import ConfigError
from atom_core.tokenization import TokenizerError

FailureKind = Literal["settings", "model", "address", "resources", "engine", "unexpected"]

_EXHAUSTED = {
    errno.ENOSPC: "free some space, or set ATOM_CACHE_DIR and TMPDIR to folders that have some",
    errno.EDQUOT: "free some of the quota, or set ATOM_CACHE_DIR and TMPDIR to folders outside of it",
    errno.EMFILE: "let the process open more files (ulimit -n)",
    errno.ENFILE: "let the machine open more files",
    errno.ENOMEM: "lower --max-model-len, --max-num-seqs or --kv-cache-memory",
}
_MEMORY = "lower --max-model-len, --max-num-seqs, --kv-cache-memory or --gpu-memory-utilization"
_NO_MEMORY_WORDS = ("can't allocate memory", "out of memory")


class Failure(msgspec.Struct, frozen=True):
    """What ended a start or an engine.

    Attributes:
        kind: "settings" and "model" are for the user to mend; "resources" ran out; "engine" died or hung;
            "unexpected" is a fault of this program.
        cause: one line, with the remedy where one is known.
        trace: file with the full trace; None where the line says all.
    """

    kind: FailureKind
    cause: str
    trace: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """What `error` means. The trace of one that does not explain itself is written to a file."""
        if isinstance(known := getattr(error, "failure", None), Failure):
            return known
        message = " ".join(str(error).split())
        is_ours = type(error).__module__.split(".")[0].startswith("atom_")
        if isinstance(error, ConfigError):
            return cls("settings", message)
        if isinstance(error, TokenizerError) or type(error).__module__.startswith("atom_models."):
            return cls("model", message)
        if isinstance(error, OSError) and error.filename is not None:
            message = f"{error.filename}: {error.strerror}"
        elif not is_ours or not message:
            message = f"{type(error).__name__}: {message}" if message else type(error).__name__
        remedy = _remedy(error)
        if remedy is not None:
            return cls("resources", f"{message}: {remedy}", write_trace(error))
        explains_itself = is_ours or isinstance(error, OSError)
        return cls("unexpected", message, None if explains_itself else write_trace(error))

    @property
    def line(self) -> str:
        """The cause, and where the trace is."""
        return self.cause if self.trace is None else f"{self.cause} (the full trace: {self.trace})"


def describe_exit(code: int) -> str:
    """How a process ended, by the exit code that `subprocess` gives."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # those for programs' own use have no names
        name = f"signal {-code}"
    return f"was ended by {name}" + (" (out of memory? lower --kv-cache-memory)" if name == "SIGKILL" else "")


def write_trace(error: BaseException) -> str:
    """Write the trace of `error` to a new file that only this user can read; its path, or why there is none."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="atom-failure-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.writelines(traceback.format_exception(error))
            return file.name
    except OSError as problem:
        return f"could not be written: {problem.strerror or problem}"


def _remedy(error: BaseException) -> str | None:
    """What to do about something that ran out; None where nothing did."""
    if isinstance(error, OSError) and error.errno in _EXHAUSTED:
        return _EXHAUSTED[error.errno]
    is_of_memory = isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _NO_MEMORY_WORDS)
    return _MEMORY if is_of_memory or isinstance(error, MemoryError) else None
