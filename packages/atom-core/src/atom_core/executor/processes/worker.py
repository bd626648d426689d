"""A rank's process: ``python -m atom_core.executor.processes.worker FD PARENT``, started by `start_rank`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from atom_core.executor.processes.rank_loop import run_rank
from atom_core.garbage import kept_for_good

if TYPE_CHECKING:
    from atom_core.config.sections import EngineConfig
    from atom_core.executor.processes.wire import Join
    from atom_core.worker.ranks.protocol import WorkerRanks
    from atom_core.worker.ranks.torch_ranks import TorchRanks
    from atom_core.worker.runner import Runner


def main() -> None:
    """Be a rank, to the end of the process."""
    with kept_for_good():
        import_module("atom_core.worker.model_runner")
    run_rank(join_ranks, make_runner)


def join_ranks(join: Join) -> TorchRanks:
    """Meet the other ranks."""
    from atom_core.worker.ranks.torch_ranks import TorchRanks

    return TorchRanks(join.meeting, join.rank, device=join.device)


def make_runner(config: EngineConfig, ranks: WorkerRanks) -> Runner:
    """What runs the steps of `config` on this rank's part of its model."""
    from atom_core.worker.model_runner import ModelRunner

    return ModelRunner(config, ranks=ranks)


if __name__ == "__main__":
    main()
