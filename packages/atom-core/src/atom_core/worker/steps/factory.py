"""Puts together what takes steps over a model: tables of requests, a sampler, a drafter and the device's `Steps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from atom_core.config.sections import EngineConfig
from atom_core.worker.drafting.model_drafter import ModelDrafter
from atom_core.worker.graphs.cuda_capture import Capture
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.model.loading_with_cache import LoadReport
from atom_core.worker.requests.device_tables import DeviceTables
from atom_core.worker.requests.host_tables import HostTables
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.requests.tables import RequestTables
from atom_core.worker.sampling.sampler import Sampler
from atom_core.worker.steps.device_steps import DeviceSteps
from atom_core.worker.steps.host_steps import HostSteps
from atom_core.worker.steps.protocol import Steps
from atom_core.worker.steps.recorded_decodes import RecordedDecodes


class StepParts(NamedTuple):
    """What steps over a model need.

    Attributes:
        states: what is kept of each request.
        sampler: draws their tokens.
        steps: builds batches and runs them, on the host or with graphs.
        drafter: guesses tokens; None where no model drafts.
    """

    states: RequestStates
    sampler: Sampler
    steps: Steps
    drafter: ModelDrafter | None


def make_steps(
    config: EngineConfig,
    model: EngineModel,
    loaded: LoadReport,
    capture: Capture | None,
    is_marked: Callable[[], bool] = lambda: False,
) -> StepParts:
    """The parts for `model` over its cache; without `capture` there are no graphs, and the host builds batches.

    While `is_marked` says that a trace names layers, these are called one by one.
    """
    max_num_seqs, max_model_len = config.scheduler.max_num_seqs, loaded.size.max_model_len
    num_groups, block_size = len(loaded.pages.groups), config.cache.block_size

    def make_parts(tables: RequestTables) -> tuple[RequestStates, Sampler, ModelDrafter | None]:
        vocab_size, device = config.model.vocab_size, config.device
        states = RequestStates(max_num_seqs, tables, num_groups=num_groups, vocab_size=vocab_size, device=device)
        return (
            states,
            Sampler(states, model.vocabulary),
            None if model.draft is None else ModelDrafter(model.draft, tables, block_size),
        )

    size = {"block_size": block_size, "num_groups": num_groups}
    if capture is None:
        on_host = HostTables(max_num_seqs, max_model_len, **size)
        states, sampler, drafter = make_parts(on_host)
        recorded = None
        if config.compile.records_decodes:
            recorded = RecordedDecodes(
                model, max_blocks=-(-max_model_len // block_size), max_seq_len=max_model_len, is_marked=is_marked
            )
        return StepParts(states, sampler, HostSteps(model, on_host, block_size, recorded), drafter)
    tables = DeviceTables(max_num_seqs, max_model_len, device=config.device, **size)
    states, sampler, drafter = make_parts(tables)
    steps = DeviceSteps(
        config,
        model,
        states,
        sampler,
        tables,
        max_model_len=max_model_len,
        weights_per_token=loaded.weights_per_token,
        capture=capture,
        drafter=drafter,
    )
    return StepParts(states, sampler, steps, drafter)
