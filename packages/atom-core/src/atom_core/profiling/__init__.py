"""Profiling of the worker with torch's profiler."""

from atom_core.profiling.torch_profiler import TorchProfiler

__all__ = ["TorchProfiler"]
