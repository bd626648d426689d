"""Reads the events of a trace of torch's profiler, plain or gzipped."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]
_GZIP = b"\x1f\x8b"


class TraceError(RuntimeError):
    """A trace that cannot be read, or does not hold what is asked of it; one line."""


@dataclass(frozen=True)
class Trace:
    """A trace's file.

    Attributes:
        events: the events that have a duration.
        devices: names of the GPUs that were there.
        matrices: what modules multiply with, by their names, as `atom_models` writes it; empty in older traces.
    """

    events: list[Event]
    devices: tuple[str, ...] = ()
    matrices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read_events(path: Path) -> list[Event]:
    """The events of `read_trace`."""
    return read_trace(path).events


def read_trace(path: Path) -> Trace:
    """What a file holds.

    Raises:
        TraceError: the file is cut short, or no trace.
    """
    try:
        data = path.read_bytes()
        trace = json.loads(gzip.decompress(data) if data.startswith(_GZIP) else data)
        events = trace["traceEvents"] if isinstance(trace, dict) else trace
        found = [event for event in events if event.get("ph") == "X" and "ts" in event and "dur" in event]
        about = trace if isinstance(trace, dict) else {}
        devices = tuple(str(device.get("name", "")) for device in about.get("deviceProperties", ()))
        return Trace(found, devices, about.get("atom_matrices", {}))
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise TraceError(f"{path} is cut short: its compressed data ends too early; record it again") from None
    except json.JSONDecodeError as error:
        cut = error.pos >= len(error.doc.rstrip())
        reason = "is cut short: its JSON ends too early; record it again" if cut else f"is no JSON: {error}"
        raise TraceError(f"{path} {reason}") from None
    except (UnicodeDecodeError, KeyError, TypeError, AttributeError):
        raise TraceError(f"{path} is no trace of torch's profiler: it has no list of traceEvents") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
