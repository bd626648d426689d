"""`ProcessExecutor`: a worker for each rank, in processes of their own. Torch-free."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from atom_core.config.sections import EngineConfig
from atom_core.errors import AdapterError, EngineDeadError, EngineStartError, ProfilerError
from atom_core.executor.processes.rank_processes import RankProcesses
from atom_core.executor.processes.wire import (
    Forward,
    Load,
    LoadAdapter,
    Prepare,
    Profile,
    Sample,
    Sampled,
    Sleep,
    UnloadAdapter,
    WakeUp,
)
from atom_core.failure import Failure
from atom_core.messages import ModelOutput, NamedAdapter, SchedulerOutput
from atom_core.worker.ranks.meeting import Engines
from atom_core.worker.runner import Masks, RunnerInfo

StartRanks = Callable[..., RankProcesses]
"""``(size, *, device, num_threads, first_device, num_stages, engines, meeting_folder) -> RankProcesses``."""


class ProcessExecutor:
    """Runs every step on every rank.

    All ranks get the same steps and masks. Those of the last stage gather the logits, so that each samples the same
    tokens by the same random numbers and nobody has to be told; what the first of them sampled is the result. A step
    that raises in one rank leaves the others inside a collective: the rank ends, and all with it.

    Args:
        config: the engine's configuration.
        start_ranks: starts the processes, which this executor ends.
    """

    def __init__(self, config: EngineConfig, start_ranks: StartRanks = RankProcesses) -> None:
        self._config, self._start_ranks = config, start_ranks
        self._ranks: RankProcesses | None = None

    def start(self) -> RunnerInfo:
        parallel = self._config.parallel
        # An engine that shares no experts is number 0 of one, whatever its number among those that share requests.
        sharing = parallel.sharing_experts
        self._ranks = self._start_ranks(
            parallel.ranks_of_engine,
            device=self._config.device,
            num_threads=parallel.num_threads,
            first_device=parallel.first_device,
            num_stages=parallel.pipeline_parallel_size,
            engines=Engines(parallel.data_parallel_rank % sharing, sharing),
            meeting_folder=parallel.meeting_folder,
        )
        try:
            first, *others = (loaded.info for loaded in self._ranks.ask(Load(self._config)))
        except EngineDeadError as error:
            raise EngineStartError(error.failure) from None
        for rank, info in enumerate(others, start=1):
            if _cache_of(info) != _cache_of(first):
                raise EngineStartError(
                    f"rank {rank} has another KV cache than rank 0: {_cache_of(info)} and {_cache_of(first)}"
                )
        return first

    def submit(self, step: SchedulerOutput) -> ProcessStepHandle:
        self._all.tell(Forward(step))
        return ProcessStepHandle(self._all)

    def sleep(self, level: int) -> None:
        self._all.ask(Sleep(level))

    def wake_up(self) -> None:
        self._all.ask(WakeUp())

    def prepare(self) -> bool:
        return any(answer.is_left for answer in self._all.ask(Prepare()))

    def load_adapter(self, adapter: NamedAdapter) -> None:
        errors = [answer.error for answer in self._all.ask(LoadAdapter(adapter)) if answer.error is not None]
        if errors:
            self.unload_adapter(adapter.id)
            raise AdapterError(errors[0])

    def unload_adapter(self, adapter_id: int) -> None:
        self._all.ask(UnloadAdapter(adapter_id))

    @property
    def is_preparing(self) -> bool:
        return self._all.is_preparing

    @property
    def failure(self) -> Failure | None:
        return self._all.failure

    @property
    def stopped_ranks(self) -> tuple[int, ...]:
        return self._all.stopped

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, by rank."""
        return self._all.pids

    def profile(self, *, start: bool) -> None:
        for answer in self._all.ask(Profile(start)):
            if answer.error is not None:
                raise ProfilerError(answer.error)

    def shutdown(self) -> None:
        if self._ranks is not None:
            self._ranks.close()

    @property
    def _all(self) -> RankProcesses:
        if self._ranks is None:
            raise RuntimeError("the executor was not started")
        return self._ranks


class ProcessStepHandle:
    """A step on its way to all ranks; see `StepHandle`."""

    def __init__(self, ranks: RankProcesses) -> None:
        self._ranks = ranks
        self._sampled: Future[Any] | None = None

    def sample(self, masks: Masks | None = None) -> None:
        words = {request_id: mask.tobytes() for request_id, mask in masks.items()} if masks else None
        self._sampled = self._ranks.ask_for_samples(Sample(words))

    def wait_for_launch(self) -> None:
        """Ranks launch beside this process, and nothing holds them up."""

    def result(self) -> ModelOutput:
        if self._sampled is None:
            raise RuntimeError("result() before sample(): the sampler was never released")
        sampled: Sampled = self._sampled.result()
        return sampled.output


def _cache_of(info: RunnerInfo) -> tuple[object, ...]:
    """What the scheduler goes by."""
    return info.num_blocks, info.max_model_len, info.groups, info.offload_places, info.send_places
