"""Breaks a profiler trace down by the modules of the model: `atom trace`."""

from atom_server.traces.breakdown import Breakdown, break_down
from atom_server.traces.roofline import Roofline, find_roofline
from atom_server.traces.trace_file import Trace, TraceError, read_events, read_trace

__all__ = ["Breakdown", "Roofline", "Trace", "TraceError", "break_down", "find_roofline", "read_events", "read_trace"]
