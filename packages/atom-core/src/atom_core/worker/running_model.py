"""`RunningModel`: a model with its cache, and all that steps over it need; a runner has it while it is awake."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace

from atom_core.config.sections import EngineConfig
from atom_core.messages import ModelOutput, SchedulerOutput, TokenLogprobs, TransferResult
from atom_core.profiling import TorchProfiler
from atom_core.worker.devices.protocol import WorkerDevice
from atom_core.worker.graphs.cuda_capture import Capture
from atom_core.worker.model.compilation import CompilationWatch
from atom_core.worker.model.engine_model import EngineModel, LayerStates
from atom_core.worker.model.loading_with_cache import LoadReport, allocate
from atom_core.worker.ranks.protocol import WorkerRanks
from atom_core.worker.runner import Masks, PendingOutput
from atom_core.worker.sampling.pooling import Pooled, Pooler
from atom_core.worker.sampling.sampler import Sampled, report
from atom_core.worker.steps.batch import ModelInput, StepRows, token_types
from atom_core.worker.steps.factory import make_steps
from atom_core.worker.steps.protocol import Steps
from atom_core.worker.vision.pictures import Pictures
from atom_models.adapters.step import AdapterStep
from atom_models.layers.mixture.exchange import rows_of_engines


@dataclass(frozen=True)
class Forward:
    """A step whose logits are computed, or on their way.

    Attributes:
        logits_nR: float32, of the rows that sample; of several ranks each has its columns (see `SharedVocabulary`).
        states: what the layers gave for its tokens; None where a graph has all of it, and nobody drafts.
        prompt_logprobs: what requests have asked for, by their index in the batch.
        pooled: vectors or scores of the prompts that it completes.
    """

    step: SchedulerOutput
    batch: ModelInput
    logits_nR: torch.Tensor
    states: LayerStates | None
    prompt_logprobs: Mapping[int, list[TokenLogprobs]]
    pooled: Sequence[Pooled]

    def report(
        self, token_ids: list[int], logprobs: Mapping[int, TokenLogprobs], vectors: Mapping[int, list[float]]
    ) -> ModelOutput:
        """What came out of it; `token_ids` has what was sampled, and drafts behind it; `vectors` what was pooled."""
        return report(
            self.step,
            token_ids,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs,
            embeddings=vectors,
        )


class RunningModel:
    """Runs steps over a model, with an empty cache and no requests at first.

    Args:
        config: the engine's configuration.
        weights: the model without a cache.
        loaded: what loading found out about it.
        device: where the model runs.
        ranks: the ranks that run the same steps.
        profiler: names what runs in its traces.
        compilation: counts what steps waited for.
        capture: makes graphs of steps; None leaves that to the device.

    Attributes:
        model: the model over its cache.
        states: what is kept of each request.
        sampler: draws tokens.
        steps: builds batches and runs them.
        pictures: the pictures of running requests; None where the model reads text alone.
    """

    def __init__(
        self,
        config: EngineConfig,
        weights: EngineModel,
        loaded: LoadReport,
        *,
        device: WorkerDevice,
        ranks: WorkerRanks,
        profiler: TorchProfiler,
        compilation: CompilationWatch,
        capture: Capture | None,
    ) -> None:
        self._device, self._ranks, self._profiler, self._compilation = device, ranks, profiler, compilation
        self.model, self._state_slots, self._mover = allocate(weights, loaded, config, ranks=ranks, device=device)
        profiler.modules = self.model.modules
        capture = capture or device.make_capture()
        if capture is not None:
            capture = profiler.around_captures(capture)
        self.states, self.sampler, self.steps, self._drafter = make_steps(
            config, self.model, loaded, capture, is_marked=profiler.is_marking
        )
        self._pooler, self._embeds = Pooler(self.model.classify), False
        self.pictures = _pictures(config, self.steps)
        # A step with nothing to compute stands for itself.
        self._forward: Forward | SchedulerOutput | None = None

    def forward(self, step: SchedulerOutput) -> None:
        """Compute the step's tokens and the logits of the rows that sample; `sample` must follow.

        A stage computes its layers, after the one before it; the last one has logits.
        """
        if step.transfers is not None and self._mover is not None:
            self._mover.begin(step.transfers)
        self._update(step)
        if step.new_requests or step.dropped_request_ids:
            self._embeds = self._pooler.update(step)
        if self.model.balancer is not None and (step.scheduled or step.rows_of_engines):
            self.model.balancer.before_step()
        if not step.rows_of_engines:
            self._compute(step)
            return
        with rows_of_engines(step.rows_of_engines):
            self._compute(step)

    def _compute(self, step: SchedulerOutput) -> None:
        if not step.scheduled:
            self._forward = step
            if step.rows_of_engines and self.model.take_part is not None:
                self.model.take_part()
            return
        rows = StepRows.of(step, self.states.slots)
        judges = self._judges_prompts(rows)
        sight = None if self.pictures is None else self.pictures.look(step)
        batch = self.steps.build(
            rows, needs_hidden_states=judges or self._embeds, adapters=self._adapters_of(rows), sight=sight
        )
        if (types := token_types(step, rows)) is not None:
            batch = dataclasses.replace(batch, token_types=types.to(batch.input_ids.device))
        self._device.begin_step()
        self._state_slots.copy(step.copies_before)
        if self.model.arriving is not None:
            self._ranks.take(self.model.arriving[: rows.num_tokens])
        with self._profiler.mark(_step_name(rows)):
            if not self.model.stage.is_last:
                self._ranks.give(self.steps.run_layers(batch).hidden_TD)
                self._forward = None
            elif (whole := self.steps.replay_model(batch)) is None:
                self._forward = self._run_layers(step, batch, judges=judges)
            else:
                self._forward = Forward(step, batch, *whole, {}, ())
        self._state_slots.copy(step.copies_behind)

    def sample(self, masks: Masks | None) -> PendingOutput:
        """Sample the step that `forward` computed last; the ids come once the device gets there."""
        if self._forward is None:
            raise RuntimeError("sample() before forward(): there is no step to sample here")
        forward, self._forward = self._forward, None
        if isinstance(forward, SchedulerOutput):
            output = ModelOutput(forward.step_id, [], transfers=self._ended(forward))
            return lambda: output
        with self._profiler.mark("sample"):
            ids = None if masks else self.steps.replay_sampler(forward.batch)
            if ids is None:
                sampled = self.sampler.sample_step(forward.step, forward.batch, forward.logits_nR, masks)
            else:
                sampled = Sampled(ids, {})
        ids = self._with_drafts(forward, sampled.token_ids)
        also = {
            "num_late_captures": self.steps.num_late_captures,
            "num_late_compilations": self._compilation.num_late,
            "num_expert_moves": 0 if self.model.balancer is None else self.model.balancer.num_moves,
            "transfers": self._ended(forward.step),
        }
        fetched = self._device.fetch(ids)
        vectors = [(pooled.indices, self._device.fetch(pooled.rows)) for pooled in forward.pooled]

        def read() -> ModelOutput:
            by_index = {}
            for indices, rows in vectors:
                by_index.update(zip(indices, rows(), strict=True))
            return replace(forward.report(fetched(), sampled.logprobs, by_index), **also)

        return read

    @property
    def num_free_slots(self) -> int:
        """Requests for which there are places beside the open ones."""
        return self.states.num_free

    def abandon(self, step: SchedulerOutput) -> None:
        """Forget what the step drops, and a forward that nobody sampled."""
        self._forward = None
        self._update(step)

    def close(self) -> None:
        """End the thread that moves blocks, and let go of those that left the cache."""
        self._profiler.modules = {}
        if self._mover is not None:
            self._mover.close()

    def _update(self, step: SchedulerOutput) -> None:
        """Forget requests, and take in new ones."""
        self.states.update(step)
        if self.pictures is not None:
            self.pictures.update(step)

    def _ended(self, step: SchedulerOutput) -> tuple[TransferResult, ...]:
        """Transfers that the step awaits, and that have ended."""
        if step.transfers is None or self._mover is None:
            return ()
        return self._mover.results(step.transfers, wait_for_one=not step.scheduled)

    def _with_drafts(self, forward: Forward, sampled_n: torch.Tensor) -> torch.Tensor:
        """What was sampled, and behind it the drafts of a draft model, which takes in the step if it follows it."""
        if self._drafter is None or forward.states is None or not forward.step.is_followed:
            return sampled_n
        with self._profiler.mark("draft"):
            numbers = [scheduled.num_next_drafts for scheduled in forward.step.scheduled]
            drafts = self.steps.replay_drafter(forward.batch, sampled_n, numbers)
            if drafts is None:
                drafts = self._drafter.follow(forward.step, forward.batch, forward.states, sampled_n)
            return torch.cat([sampled_n, drafts]) if len(drafts) else sampled_n

    def _adapters_of(self, rows: StepRows) -> AdapterStep | None:
        """Which adapter each token of the step has; None where none has one."""
        if self.model.adapters is None:
            return None
        return self.model.adapters.step(np.repeat(self.states.adapter_ids[rows.slots], rows.lengths))

    def _judges_prompts(self, rows: StepRows) -> bool:
        """Whether a request of the step wants to know how likely the tokens of its prompt are."""
        extras = self.states.extras
        return bool(extras) and any(
            (found := extras.get(slot)) is not None and found.params.prompt_logprobs is not None
            for slot in rows.slots.tolist()
        )

    def _run_layers(self, step: SchedulerOutput, batch: ModelInput, *, judges: bool) -> Forward:
        states, model = self.steps.run_layers(batch), self.model
        hidden_TD = states.hidden_TD
        pooled = self._pooler.pool(step, batch.rows, hidden_TD) if self._embeds else ()
        prompt_logprobs = (
            self.sampler.logprobs.of_prompts(batch, hidden_TD, self.states, model.compute_whole_logits)
            if judges
            else {}
        )
        rows_nD = batch.of_sampling_rows(hidden_TD)
        logits_nR = model.compute_logits(rows_nD) if len(batch.rows.sampling) else rows_nD
        return Forward(step, batch, logits_nR, states, prompt_logprobs, pooled)


def _pictures(config: EngineConfig, steps: Steps) -> Pictures | None:
    if config.images is None:
        return None
    device = torch.device(config.device)
    return Pictures(steps.encode, config.images.spec, cache_bytes=config.images.cache_bytes, device=device)


def _step_name(rows: StepRows) -> str:
    num_decodes = rows.num_decodes
    kind = "decode" if num_decodes == rows.num_reqs else "prefill" if not num_decodes else "mixed"
    return f"{kind}[requests={rows.num_reqs} tokens={rows.num_tokens}]"
