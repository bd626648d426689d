"""`make_executor`: one worker in this process, or a process for each rank; `make_launcher`: what starts those."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from atom_core.config.executor_backend import ExecutorBackend
from atom_core.config.sections import EngineConfig
from atom_core.executor.launchers.protocol import Launcher
from atom_core.executor.protocol import Executor
from atom_core.settings import torchrun

MakeExecutor = Callable[[EngineConfig], Executor]


def make_executor(config: EngineConfig) -> Executor:
    """What runs the steps of `config`; torch is imported here only where the worker is in this process."""
    parallel = config.parallel
    if parallel.ranks_of_engine > 1 or parallel.executor_backend != "mp" or parallel.enable_dp_attention:
        from atom_core.executor.processes.executor import ProcessExecutor
        from atom_core.executor.processes.rank_processes import RankProcesses

        return ProcessExecutor(config, partial(RankProcesses, launcher=make_launcher(parallel.executor_backend)))
    from atom_core.executor.inline import InlineExecutor
    from atom_core.worker.devices.factory import device_of
    from atom_core.worker.model_runner import ModelRunner

    if parallel.data_parallel_size > 1:
        device_of(config.device).take(parallel.first_device)
    return InlineExecutor(ModelRunner(config))


def make_launcher(backend: ExecutorBackend) -> Launcher:
    """What places and starts the ranks of an engine."""
    if backend == "ray":
        from atom_core.executor.launchers.ray_launcher import RayLauncher

        return RayLauncher()
    if (process := torchrun()) is not None:
        from atom_core.executor.launchers.torchrun import TorchrunLauncher

        return TorchrunLauncher(process)
    from atom_core.executor.launchers.this_host import HostLauncher

    return HostLauncher()
