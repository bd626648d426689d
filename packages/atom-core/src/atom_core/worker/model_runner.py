"""`ModelRunner`: one device's model, caches and request states; runs the steps it is given, in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from msgspec.structs import replace

from atom_core.config.sections import EngineConfig
from atom_core.messages import ModelOutput, SchedulerOutput, TokenLogprobs, TransferResult
from atom_core.profiling import TorchProfiler
from atom_core.worker.cache.device_memory import give_memory_back
from atom_core.worker.devices.factory import device_of
from atom_core.worker.drafting.model_drafter import ModelDrafter
from atom_core.worker.graphs.cuda_capture import Capture
from atom_core.worker.model.compilation import CompilationWatch
from atom_core.worker.model.engine_model import LayerStates
from atom_core.worker.model.host_weights import HostWeights
from atom_core.worker.model.loading import load_engine_model
from atom_core.worker.model.loading_with_cache import LoadModel, LoadReport, allocate, load_and_measure
from atom_core.worker.offload.mover import BlockMover
from atom_core.worker.ranks.protocol import ALONE, WorkerRanks
from atom_core.worker.requests.device_tables import DeviceTables
from atom_core.worker.requests.host_tables import HostTables
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.requests.tables import RequestTables
from atom_core.worker.runner import Masks, PendingOutput, RunnerInfo
from atom_core.worker.sampling.pooling import Pooler
from atom_core.worker.sampling.sampler import Sampled, Sampler, report
from atom_core.worker.steps.batch import ModelInput, StepRows
from atom_core.worker.steps.device_steps import DeviceSteps
from atom_core.worker.steps.host_steps import HostSteps
from atom_core.worker.steps.protocol import Steps
from atom_core.worker.steps.token_delivery import deliver

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Forward:
    """A step whose logits are computed, or on their way.

    Attributes:
        logits_nV: float32, of the rows that sample.
        states: what the layers gave for its tokens; None where a graph has all of it, and nobody drafts.
        prompt_logprobs, vectors: by index in the batch, of the requests that ask for them.
    """

    step: SchedulerOutput
    batch: ModelInput
    logits_nV: torch.Tensor
    states: LayerStates | None
    prompt_logprobs: Mapping[int, list[TokenLogprobs]]
    vectors: Mapping[int, list[float]]

    def report(self, token_ids: list[int], logprobs: Mapping[int, TokenLogprobs]) -> ModelOutput:
        """What came out of it; `token_ids` has what was sampled, and drafts behind it."""
        return report(
            self.step,
            token_ids,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs,
            embeddings=self.vectors,
        )


class ModelRunner:
    """Loads a model and runs steps; every method is called from one thread.

    Args:
        config: the engine's configuration.
        load_model: gives the model; tests and benchmarks put another in its place.
        ranks: those that run the same steps, each on its part of the model.
        capture: makes graphs of steps; None leaves that to the device.
    """

    def __init__(
        self,
        config: EngineConfig,
        load_model: LoadModel = load_engine_model,
        *,
        ranks: WorkerRanks = ALONE,
        capture: Capture | None = None,
    ) -> None:
        self._config, self._device = config, device_of(config.device)
        self._load_model = load_model
        self._capture = capture
        self._ranks = ranks
        self._profiler = TorchProfiler(config.profiler, config.parallel.name_of(ranks.rank), config.model.name)
        self._pooler = Pooler()
        self._embeds = False
        # A step with nothing to compute stands for itself.
        self._forward: Forward | SchedulerOutput | None = None
        self._on_host: HostWeights | None = None
        self._mover: BlockMover | None = None

    @torch.inference_mode()
    def load(self) -> RunnerInfo:
        """Load the weights, size and allocate the KV cache, set this thread's compute threads."""
        config = self._config
        self._device.begin(config.parallel.num_threads)
        self._without_cache, loaded = load_and_measure(config, self._load_model, self._ranks, device=self._device)
        self._loaded = loaded
        self._compilation = CompilationWatch() if config.compile.level else None
        begun = time.perf_counter()
        self._set_up()
        return RunnerInfo(
            num_blocks=loaded.size.num_blocks,
            groups=loaded.pages.specs,
            num_slots=loaded.size.num_slots,
            num_snapshots=loaded.size.num_snapshots,
            max_model_len=loaded.size.max_model_len,
            timings={**loaded.timings, "allocate cache": time.perf_counter() - begun},
            choices=[*loaded.choices, *self._steps.choices],
            launches=self._device.launches,
            offload_places=loaded.offload.places,
        )

    @torch.inference_mode()
    def forward(self, step: SchedulerOutput) -> None:
        """Compute the step's tokens and the logits of the rows that sample; `sample` must follow.

        A stage computes its layers, after the one before it; the last one has logits.
        """
        self._tell(self._profiler.count_step())
        if step.transfers is not None and self._mover is not None:
            self._mover.begin(step.transfers)
        self._states.update(step)
        if step.new_requests or step.dropped_request_ids:
            self._embeds = self._pooler.update(step)
        if not step.scheduled:
            self._forward = step
            return
        rows = StepRows.of(step, self._states.slots)
        judges = self._judges_prompts(rows)
        batch = self._steps.build(rows, needs_hidden_states=judges or self._embeds)
        self._device.begin_step()
        self._state_slots.copy(step.copies_before)
        if self._model.arriving is not None:
            self._ranks.take(self._model.arriving[: rows.num_tokens])
        with self._profiler.mark(_step_name(rows)):
            if not self._model.stage.is_last:
                self._ranks.give(self._steps.run_layers(batch).hidden_TD)
                self._forward = None
            elif (whole := self._steps.replay_model(batch)) is None:
                self._forward = self._run_layers(step, batch, judges=judges)
            else:
                self._forward = Forward(step, batch, *whole, {}, {})
        self._state_slots.copy(step.copies_behind)

    @torch.inference_mode()
    def sample(self, masks: Masks | None = None) -> PendingOutput:
        """Sample the step that `forward` computed last; the ids come once the device gets there."""
        if self._forward is None:
            raise RuntimeError("sample() before forward(): there is no step to sample here")
        forward, self._forward = self._forward, None
        if isinstance(forward, SchedulerOutput):
            output = ModelOutput(forward.step_id, [], transfers=self._ended(forward))
            return lambda: output
        with self._profiler.mark("sample"):
            ids = None if masks else self._steps.replay_sampler(forward.batch)
            if ids is None:
                sampled = self._sampler.sample_step(forward.step, forward.batch, forward.logits_nV, masks)
            else:
                sampled = Sampled(ids, {})
        ids = self._with_drafts(forward, sampled.token_ids)
        also = self._num_late() | {"transfers": self._ended(forward.step)}
        return deliver(ids, lambda token_ids: replace(forward.report(token_ids, sampled.logprobs), **also))

    @torch.inference_mode()
    def sleep(self, level: int) -> None:
        """Give back the memory of the cache and of the weights, which the host keeps at level 1; no request is open.

        Blocks that left the cache are given back too: nobody finds what was cached before.
        """
        self._close_mover()
        del self._model, self._state_slots, self._states, self._sampler, self._steps, self._drafter
        self._pooler, self._embeds, self._forward = Pooler(), False, None
        self._profiler.modules = {}
        give_memory_back()  # graphs go before the weights that they were captured over
        if level == 1:
            self._on_host = HostWeights(self._without_cache)
        else:
            del self._without_cache
        give_memory_back()

    @torch.inference_mode()
    def wake_up(self) -> None:
        """Take the weights and an empty cache of the size of before into memory again."""
        if self._on_host is None:
            self._without_cache = self._load_model(self._config, self._ranks)
        else:
            self._on_host.restore()
            self._on_host = None
        self._set_up()

    @torch.inference_mode()
    def prepare(self) -> bool:
        """Capture a graph before a step needs it; False where none is left."""
        return self._steps.capture_next()

    @property
    def is_preparing(self) -> bool:
        """Whether a graph is captured or something is compiled; asked from any thread."""
        steps: Steps | None = vars(self).get("_steps")  # none while it sleeps
        is_capturing = steps is not None and steps.is_preparing
        return is_capturing or (self._compilation is not None and self._compilation.is_running)

    def profile(self, *, start: bool) -> None:
        """Begin a trace, or end it and write it (see `TorchProfiler`)."""
        if start:
            self._profiler.start()
        else:
            self._tell(self._profiler.stop())

    def close(self) -> None:
        """Write the traces that are being recorded, and let go of blocks that left the cache; no step follows."""
        self._close_mover()
        try:
            for path in self._profiler.close():
                self._tell(path)
        except OSError as error:
            logger.warning("a trace was lost: %s", error)

    def _tell(self, trace: Path | None) -> None:
        if trace is not None:
            logger.info("wrote the trace %s", trace)

    def _close_mover(self) -> None:
        """End the thread that moves blocks, and remove its file."""
        if self._mover is not None:
            self._mover.close()
            self._mover = None

    def _ended(self, step: SchedulerOutput) -> tuple[TransferResult, ...]:
        """Transfers that the step awaits, and that have ended."""
        if step.transfers is None or self._mover is None:
            return ()
        return self._mover.results(step.transfers, wait_for_one=not step.scheduled)

    def _num_late(self) -> dict[str, Any]:
        """What steps waited for, as `ModelOutput` has it: nothing compiles but the first steps of some shape."""
        compilation = self._compilation
        return {
            "num_late_captures": self._steps.num_late_captures,
            "num_late_compilations": 0 if compilation is None else compilation.num_begun,
        }

    def _with_drafts(self, forward: Forward, sampled_n: torch.Tensor) -> torch.Tensor:
        """What was sampled, and behind it the drafts of a draft model, which takes in the step if it follows it."""
        if self._drafter is None or forward.states is None or not forward.step.is_followed:
            return sampled_n
        with self._profiler.mark("draft"):
            numbers = [scheduled.num_next_drafts for scheduled in forward.step.scheduled]
            drafts = self._steps.replay_drafter(forward.batch, sampled_n, numbers)
            if drafts is None:
                drafts = self._drafter.follow(forward.step, forward.batch, forward.states, sampled_n)
            return torch.cat([sampled_n, drafts]) if len(drafts) else sampled_n

    def _judges_prompts(self, rows: StepRows) -> bool:
        """Whether a request of the step wants to know how likely the tokens of its prompt are."""
        extras = self._states.extras
        return any(
            (found := extras[slot]) is not None and found.params.prompt_logprobs is not None
            for slot in rows.slots.tolist()
        )

    def _run_layers(self, step: SchedulerOutput, batch: ModelInput, *, judges: bool) -> Forward:
        states, compute_logits = self._steps.run_layers(batch), self._model.compute_logits
        hidden_TD = states.hidden_TD
        pooled = self._pooler.pool(step, batch, hidden_TD) if self._embeds else {}
        prompt_logprobs = (
            self._sampler.logprobs.of_prompts(batch, hidden_TD, self._states, compute_logits) if judges else {}
        )
        rows_nD = batch.of_sampling_rows(hidden_TD)
        logits_nV = compute_logits(rows_nD) if len(batch.rows.sampling) else rows_nD
        vectors = {index: vector_D.tolist() for index, vector_D in pooled.items()}
        return Forward(step, batch, logits_nV, states, prompt_logprobs, vectors)

    def _set_up(self) -> None:
        """Give the loaded model its cache, and what runs steps over the two."""
        loaded = self._loaded
        self._model, self._state_slots, self._mover = allocate(
            self._without_cache, loaded, self._config, ranks=self._ranks, device=self._device
        )
        self._profiler.modules = self._model.modules
        self._states, self._sampler, self._steps, self._drafter = self._make_steps(loaded)

    def _make_steps(self, loaded: LoadReport) -> tuple[RequestStates, Sampler, Steps, ModelDrafter | None]:
        """What is kept of requests, what samples them, how this device takes steps over them, and what drafts."""
        config, model = self._config, self._model
        max_num_seqs, max_model_len = config.scheduler.max_num_seqs, loaded.size.max_model_len
        num_groups, block_size = len(loaded.pages.groups), config.cache.block_size
        make_states = partial(
            RequestStates,
            max_num_seqs,
            num_groups=num_groups,
            vocab_size=config.model.vocab_size,
            device=config.device,
        )
        size = {"block_size": block_size, "num_groups": num_groups}
        capture = self._capture or self._device.make_capture()
        if capture is None:
            on_host = HostTables(max_num_seqs, max_model_len, **size)
            states = make_states(on_host)
            return states, Sampler(states), HostSteps(model, on_host, block_size), self._make_drafter(on_host)
        capture = self._profiler.around_captures(capture)
        tables = DeviceTables(max_num_seqs, max_model_len, device=config.device, **size)
        states = make_states(tables)
        sampler, drafter = Sampler(states), self._make_drafter(tables)
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
        return states, sampler, steps, drafter

    def _make_drafter(self, tables: RequestTables) -> ModelDrafter | None:
        draft = self._model.draft
        return None if draft is None else ModelDrafter(draft, tables, self._config.cache.block_size)


def _step_name(rows: StepRows) -> str:
    num_decodes = rows.num_decodes
    kind = "decode" if num_decodes == rows.num_reqs else "prefill" if not num_decodes else "mixed"
    return f"{kind}[requests={rows.num_reqs} tokens={rows.num_tokens}]"
