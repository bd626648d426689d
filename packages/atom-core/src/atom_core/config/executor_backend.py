"""`check_backend`: whether what is to start the ranks is there, and goes with the other settings. Torch-free."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal

from atom_core import settings
from atom_core.config.options import ConfigError

if TYPE_CHECKING:
    from atom_core.config.engine_args import EngineArgs

ExecutorBackend = Literal["mp", "ray"]
INSTALL = "pip install 'ray>=2.40'"


def check_backend(args: EngineArgs) -> None:
    """Raise ConfigError where what is to start the ranks cannot be had, or torchrun starts another number of them."""
    if (process := settings.torchrun()) is not None:
        _check_torchrun(args, process)
    if args.distributed_executor_backend != "ray":
        return
    if args.data_parallel_size > 1:
        raise ConfigError(
            f"data_parallel_size is {args.data_parallel_size}, and distributed_executor_backend ray does not go with "
            "it: leave out one of them, or start a server for each engine"
        )
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"distributed_executor_backend is ray, which is not installed: {INSTALL}, on all nodes")


def _check_torchrun(args: EngineArgs, process: settings.Torchrun) -> None:
    if args.data_parallel_size > 1 or args.distributed_executor_backend != "mp":
        raise ConfigError(
            "torchrun starts the ranks of one engine, by itself: leave out data_parallel_size and "
            "distributed_executor_backend, or run this without torchrun"
        )
    tensor, pipeline = args.tensor_parallel_size, args.pipeline_parallel_size
    if process.size != tensor * pipeline:
        raise ConfigError(
            f"torchrun started {process.size} processes, and tensor_parallel_size {tensor} with pipeline_parallel_size "
            f"{pipeline} has {tensor * pipeline} ranks: give -tp {process.size}, or another --nproc-per-node"
        )
