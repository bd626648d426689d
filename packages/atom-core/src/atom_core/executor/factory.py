"""`make_executor`: one worker in this process, or a process for each rank."""

from __future__ import annotations

from collections.abc import Callable

from atom_core.config.sections import EngineConfig
from atom_core.executor.protocol import Executor

MakeExecutor = Callable[[EngineConfig], Executor]


def make_executor(config: EngineConfig) -> Executor:
    """What runs the steps of `config`; torch is imported here only where the worker is in this process."""
    if config.parallel.ranks_of_engine > 1:
        from atom_core.executor.processes.executor import ProcessExecutor

        return ProcessExecutor(config)
    from atom_core.executor.inline import InlineExecutor
    from atom_core.worker.devices.factory import device_of
    from atom_core.worker.model_runner import ModelRunner

    if config.parallel.data_parallel_size > 1:
        device_of(config.device).take(config.parallel.first_device)
    return InlineExecutor(ModelRunner(config))
