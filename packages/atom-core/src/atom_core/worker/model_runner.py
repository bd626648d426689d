"""`ModelRunner`: one device's model, caches and request states; runs the steps it is given, in order."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch

from atom_core.config.sections import EngineConfig
from atom_core.executor.protocol import Masks, PendingOutput, RunnerInfo
from atom_core.messages import ModelOutput, SchedulerOutput, TokenLogprobs
from atom_core.profiling import TorchProfiler
from atom_core.worker.cache_memory import available_memory, size_cache
from atom_core.worker.cache_pages import plan_pages
from atom_core.worker.input_batch import ModelInput, build_input
from atom_core.worker.kv_caches import allocate_caches
from atom_core.worker.logprobs import prompt_logprobs_of_step
from atom_core.worker.model_loading import EngineModel, load_engine_model
from atom_core.worker.pooling import Pooler, with_embeddings
from atom_core.worker.request_states import RequestStates
from atom_core.worker.sampler import report, sample_step
from atom_core.worker.token_delivery import TokenDelivery
from atom_models.forward_context import ForwardContext, set_forward_context

logger = logging.getLogger(__name__)


class ModelRunner:
    """Loads a model and runs steps; every method is called from one thread.

    Args:
        config: of the engine.
        load_model: gives the model; tests and benchmarks put another in its place.
    """

    def __init__(
        self,
        config: EngineConfig,
        load_model: Callable[[EngineConfig], EngineModel] = load_engine_model,
        *,
        rank: int = 0,
    ) -> None:
        self._config = config
        self._load_model = load_model
        self._profiler = TorchProfiler(config.profiler, rank)
        self._pooler = Pooler()
        self._delivery = TokenDelivery(config.device, config.scheduler.max_num_seqs)
        self._pooled: dict[int, torch.Tensor] = {}
        self._pending: tuple[SchedulerOutput, ModelInput, torch.Tensor, dict[int, list[TokenLogprobs]]] | None = None

    @torch.inference_mode()
    def load(self) -> RunnerInfo:
        """Load the weights, size and allocate the KV cache, set this thread's compute threads."""
        config = self._config
        if config.device == "cpu":
            # OpenMP counts threads for each thread that starts work, so this must happen in the worker's own.
            torch.set_num_threads(config.parallel.num_threads)
        started = time.perf_counter()
        self._model = self._load_model(config)
        loaded = time.perf_counter()
        layers = self._model.attention_layers
        pages = plan_pages(layers, config.model.max_model_len)
        size = size_cache(
            config.cache,
            block_bytes=max(pages.page_bytes, 1),
            max_num_seqs=config.scheduler.max_num_seqs,
            max_model_len=config.model.max_model_len,
            max_model_len_given=config.model.max_model_len_given,
            memory=self._memory_for_cache(),
            on_cpu=config.device == "cpu",
            windows=pages.windows,
            token_bytes=pages.token_bytes or None,
            max_step_tokens=config.scheduler.max_num_batched_tokens,
        )
        self._kv_caches = allocate_caches(layers, pages, size.num_blocks, config.device)
        self._plans = self._model.plans_by_group([group.layers for group in pages.groups])
        self._states = RequestStates(
            config.scheduler.max_num_seqs,
            size.max_model_len,
            block_size=config.cache.block_size,
            device=config.device,
            vocab_size=config.model.vocab_size,
            num_groups=len(pages.groups),
        )
        allocated = time.perf_counter()
        return RunnerInfo(
            num_blocks=size.num_blocks,
            windows=pages.windows,
            max_model_len=size.max_model_len,
            vocab_size=config.model.vocab_size,
            timings={"load weights": loaded - started, "allocate cache": allocated - loaded},
            choices=list(size.choices),
        )

    @torch.inference_mode()
    def forward(self, step: SchedulerOutput) -> None:
        """Compute the step's tokens and the logits of the rows that sample; `sample` must follow."""
        self._states.update(step)
        batch = build_input(step, self._states, self._config.cache.block_size)
        metadata: dict[str, Any] = {}
        for plan, group, names in self._plans:
            metadata.update(dict.fromkeys(names, plan.build_metadata(batch.geometries[group])))
        context = ForwardContext(kv_caches=self._kv_caches, metadata=metadata)
        with self._profiler.mark(_step_name(batch)):
            with set_forward_context(context):
                hidden_TD = self._model.forward(batch.input_ids, batch.positions)
            self._pooled = self._pooler.pool(step, batch, hidden_TD)
            prompt_logprobs = prompt_logprobs_of_step(batch, hidden_TD, self._states, self._model.compute_logits)
            rows = hidden_TD if batch.last_tokens is None else hidden_TD[batch.last_tokens]
            logits_nV = self._model.compute_logits(rows) if len(batch.sampling) else rows
        self._pending = (step, batch, logits_nV, prompt_logprobs)

    @torch.inference_mode()
    def sample(self, masks: Masks | None = None) -> PendingOutput:
        """Sample the step that `forward` computed last; the ids come once the device gets there."""
        if self._pending is None:
            raise RuntimeError("sample() before forward(): there is no step to sample")
        (step, batch, logits_nV, prompt_logprobs), self._pending = self._pending, None
        with self._profiler.mark("sample"):
            sampled = sample_step(step, batch, logits_nV, states=self._states, masks=masks)
            vectors = {index: vector_D.tolist() for index, vector_D in self._pooled.items()}

            def report_step(token_ids: list[int]) -> ModelOutput:
                output = report(step, batch, token_ids, logprobs=sampled.logprobs, prompt_logprobs=prompt_logprobs)
                return with_embeddings(output, vectors)

            return self._delivery.deliver(sampled.token_ids, report_step)

    def start_profile(self) -> None:
        """Begin a trace (see `TorchProfiler.start`)."""
        self._profiler.start()

    def stop_profile(self) -> None:
        """End the trace and write it."""
        logger.info("wrote the trace %s", self._profiler.stop())

    def _memory_for_cache(self) -> int:
        """Bytes that the cache may take: what is free on a CPU, what the utilization leaves on a GPU."""
        if self._config.device == "cpu":
            return available_memory()
        free, total = torch.cuda.mem_get_info()
        return max(int(total * self._config.cache.memory_utilization) - (total - free), 0)


def _step_name(batch: ModelInput) -> str:
    geometry = batch.geometry
    kind = "decode" if geometry.num_decodes == geometry.num_reqs else "prefill" if not geometry.num_decodes else "mixed"
    return f"{kind}[requests={geometry.num_reqs} tokens={geometry.num_tokens}]"
