"""`ModelRunner`: loads a model on one device, runs the steps it is given in order, sleeps and wakes up."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import torch

from atom_core.config.sections import EngineConfig
from atom_core.messages import NamedAdapter, SchedulerOutput
from atom_core.profiling import TorchProfiler
from atom_core.worker.cache.device_memory import give_memory_back
from atom_core.worker.devices.factory import device_of
from atom_core.worker.graphs.cuda_capture import Capture
from atom_core.worker.model.compilation import CompilationWatch
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.model.host_weights import HostWeights
from atom_core.worker.model.loading import load_engine_model
from atom_core.worker.model.loading_with_cache import LoadModel, LoadReport, load_and_measure
from atom_core.worker.ranks.protocol import ALONE, WorkerRanks
from atom_core.worker.runner import Masks, PendingOutput, RunnerInfo
from atom_core.worker.running_model import RunningModel
from atom_core.worker.warmup.factory import make_warmup
from atom_core.worker.warmup.warmup import Warmup
from atom_models.adapters.adapter import Adapter
from atom_models.adapters.errors import AdapterError
from atom_models.adapters.loaded import LoadedAdapters

logger = logging.getLogger(__name__)

NO_MODEL = "there is no model to run: call load() first, and wake_up() after sleep()"


class ModelRunner:
    """Loads a model and runs steps; every method is called from one thread.

    Args:
        config: the engine's configuration.
        load_model: gives the model; tests and benchmarks put another in its place.
        ranks: the ranks that run the same steps, each on its part of the model.
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
        self._load_model, self._ranks, self._capture = load_model, ranks, capture
        self._profiler = TorchProfiler(config.profiler, config.parallel.name_of(ranks.rank), config.model.name)
        self._compilation = CompilationWatch()
        self._weights: EngineModel | None = None
        # While weights are gone that will be read anew.
        self._evicted: Mapping[int, Adapter] = {}
        self._on_host: HostWeights | None = None
        self._running: RunningModel | None = None
        self._warmup: Warmup | None = None

    @torch.inference_mode()
    def load(self) -> RunnerInfo:
        """Load the weights, size and allocate the KV cache, set this thread's compute threads."""
        config = self._config
        self._device.begin(config.parallel.num_threads)
        self._weights, loaded = load_and_measure(config, self._load_model, self._ranks, device=self._device)
        self._loaded = loaded
        if config.compile.level:
            self._compilation.watch_torch()
        if self._device.launches and find_spec("triton") is not None:
            self._compilation.watch_triton()
        begun = time.perf_counter()
        running = self._start(self._weights, loaded)
        return RunnerInfo(
            num_blocks=loaded.size.num_blocks,
            groups=loaded.pages.specs,
            num_slots=loaded.size.num_slots,
            num_snapshots=loaded.size.num_snapshots,
            max_model_len=loaded.size.max_model_len,
            timings={**loaded.timings, "allocate cache": time.perf_counter() - begun},
            choices=[*loaded.choices, *running.steps.choices],
            launches=self._device.launches,
            offload_places=loaded.offload.places,
            send_places=loaded.offload.num_to_send,
        )

    @torch.inference_mode()
    def forward(self, step: SchedulerOutput) -> None:
        """See `RunningModel.forward`."""
        self._tell(self._profiler.count_step())
        self.running.forward(step)

    @torch.inference_mode()
    def sample(self, masks: Masks | None = None) -> PendingOutput:
        """See `RunningModel.sample`."""
        return self.running.sample(masks)

    @torch.inference_mode()
    def sleep(self, level: int) -> None:
        """Give back the memory of the cache and of the weights, which the host keeps at level 1; no request is open.

        Blocks that left the cache are given back too: nobody finds what was cached before.
        """
        self.running.close()
        self._running = self._warmup = None
        give_memory_back()  # graphs go before the weights that they were captured over
        if level == 1:
            self._on_host = HostWeights(self._weights)
        else:
            adapters = self._weights and self._weights.adapters
            self._evicted = {} if adapters is None else dict(adapters.all)
            self._weights = None
        give_memory_back()

    @torch.inference_mode()
    def wake_up(self) -> None:
        """Take the weights and an empty cache of the size of before into memory again."""
        if self._on_host is not None:
            self._on_host.restore()
            self._on_host = None
        if self._weights is None:
            self._weights = self._load_model(self._config, self._ranks)
            for adapter_id, adapter in self._evicted.items():
                self._takes_adapters.attach(adapter_id, adapter)
            self._evicted = {}
        self._start(self._weights, self._loaded)

    @torch.inference_mode()
    def prepare(self) -> bool:
        """Compile, capture or load something before a step needs it; False where nothing is left."""
        if self._warmup is None:
            raise RuntimeError(NO_MODEL)
        return self._warmup.do_next()

    @torch.inference_mode()
    def load_adapter(self, adapter: NamedAdapter) -> None:
        """Read an adapter, for requests with its number (see `LoadedAdapters.load`)."""
        self._takes_adapters.load(adapter.id, Path(adapter.folder), adapter.task)

    @torch.inference_mode()
    def unload_adapter(self, adapter_id: int) -> None:
        """Let go of an adapter that no request has any more."""
        self._takes_adapters.unload(adapter_id)

    @property
    def is_preparing(self) -> bool:
        """Whether a graph is captured or something is compiled; asked from any thread."""
        running, warmup = self._running, self._warmup
        return (
            self._compilation.is_running
            or (running is not None and running.steps.is_preparing)
            or (warmup is not None and warmup.is_running)
        )

    def profile(self, *, start: bool) -> None:
        """Begin a trace, or end it and write it (see `TorchProfiler`)."""
        if start:
            self._profiler.start()
        else:
            self._tell(self._profiler.stop())

    def close(self) -> None:
        """Write the traces that are being recorded, and let go of blocks that left the cache; no step follows."""
        if self._running is not None:
            self._running.close()
        try:
            for path in self._profiler.close():
                self._tell(path)
        except OSError as error:
            logger.warning("a trace was lost: %s", error)

    @property
    def running(self) -> RunningModel:
        """The model as it runs.

        Raises:
            RuntimeError: it was not loaded, or it sleeps.
        """
        if self._running is None:
            raise RuntimeError(NO_MODEL)
        return self._running

    @property
    def _takes_adapters(self) -> LoadedAdapters:
        adapters = self._weights and self._weights.adapters
        if adapters is None:
            raise AdapterError("this engine takes no adapters: start it with enable_lora")
        return adapters

    def _start(self, weights: EngineModel, loaded: LoadReport) -> RunningModel:
        self._running = RunningModel(
            self._config,
            weights,
            loaded,
            device=self._device,
            ranks=self._ranks,
            profiler=self._profiler,
            compilation=self._compilation,
            capture=self._capture,
        )
        self._warmup = make_warmup(self._config, self._running, loaded, self._compilation)
        return self._running

    def _tell(self, trace: Path | None) -> None:
        if trace is not None:
            logger.info("wrote the trace %s", trace)
