"""Executors: run the scheduler's steps on workers, one step ahead of their results."""

from atom_core.executor.inline import InlineExecutor
from atom_core.executor.protocol import Executor, PendingOutput, Runner, RunnerInfo, StepHandle

__all__ = ["Executor", "InlineExecutor", "PendingOutput", "Runner", "RunnerInfo", "StepHandle"]
