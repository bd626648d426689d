"""A rank whose model has its logits already: ``python -m benchmarks.ready_rank FD``, for `benchmarks overhead`."""

from __future__ import annotations

from typing import Any

from atom_core.executor.processes.rank_loop import run_rank
from atom_core.executor.processes.worker import join_ranks
from atom_core.worker.model_runner import ModelRunner
from benchmarks.overhead import ready_model


def make_runner(config: Any, ranks: Any) -> ModelRunner:
    """The real runner and sampler."""
    return ModelRunner(config, ready_model, ranks=ranks)


if __name__ == "__main__":
    run_rank(join_ranks, make_runner)
