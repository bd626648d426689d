"""Executors: run the scheduler's steps on workers, one step ahead of their results."""

from atom_core.executor.inline import InlineExecutor
from atom_core.executor.protocol import Executor, StepHandle

__all__ = ["Executor", "InlineExecutor", "StepHandle"]
