"""Breaks a profiler trace down by the modules of the model: `atom trace`."""

from atom_server.traces.breakdown import Breakdown, break_down
from atom_server.traces.trace_file import TraceError, read_events

__all__ = ["Breakdown", "TraceError", "break_down", "read_events"]
