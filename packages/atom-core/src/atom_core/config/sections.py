"""The resolved configuration: small frozen sections, each taken by the part that needs it. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

# At run time too: the configuration crosses processes, and msgspec reads these types.
from atom_core.config.executor_backend import ExecutorBackend
from atom_core.kv_cache.config import PrefixHash
from atom_core.kv_events.config import KVEventsConfig
from atom_core.kv_transfer.config import KVTransferConfig
from atom_core.scheduler.config import SchedulerConfig
from atom_core.speculation.config import SpeculationConfig
from atom_core.structured_output.config import StructuredOutputConfig
from atom_kernels.protocols.cache_format import CacheFormat
from atom_models.checkpoint.text_padding import TextPadding
from atom_models.vision.spec import VisionSpec

GraphMode = Literal["none", "piecewise", "full", "full-and-piecewise"]
Warmup = Literal["none", "background", "full"]


@dataclass(frozen=True)
class ModelConfig:
    """Which model runs, and how. `max_model_len` is settled once the cache has its size.

    `is_encoder` says that it reads texts in both directions, and that each is computed whole. `text_padding`
    is what they are filled up with.
    """

    name: str
    path: Path
    architecture: str
    dtype: str
    max_model_len: int
    max_model_len_given: bool
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    quantization: str = "auto"
    model_impl: str = "auto"
    load_dummy: bool = False
    is_encoder: bool = False
    text_padding: TextPadding | None = None
    skip_tokenizer_init: bool = False
    tokenizer: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class OffloadConfig:
    """Where blocks go that leave the KV cache; bytes are those of all ranks of an engine.

    `folder` is None where none go to a disk.
    """

    memory_bytes: int
    folder: Path | None = None
    disk_bytes: int = 0


@dataclass(frozen=True)
class CacheConfig:
    """How the KV cache is laid out and sized; None is for the worker to work out from free memory.

    `events` says who is told what is cached; `strict_memory` refuses to start where the longest request would not fit,
    instead of lowering its length. `offload` is None where blocks that leave the cache are forgotten, and `transfer`
    where the engine computes its prompts itself and alone.
    """

    block_size: int
    format: CacheFormat
    enable_prefix_caching: bool
    prefix_hash: PrefixHash
    memory_utilization: float
    memory_bytes: int | None = None
    num_blocks: int | None = None
    strict_memory: bool = False
    events: KVEventsConfig | None = None
    offload: OffloadConfig | None = None
    transfer: KVTransferConfig | None = None


@dataclass(frozen=True)
class BalanceConfig:
    """When experts move between ranks.

    Attributes:
        window: the steps before a move whose rows are counted.
        interval: steps from one move to the next.
    """

    window: int
    interval: int


@dataclass(frozen=True)
class ParallelConfig:
    """How the work is spread.

    Attributes:
        num_threads: threads of each rank on a CPU.
        tensor_parallel_size: ranks that share each layer, a device each.
        data_parallel_size: engines that share the requests, each with all of these ranks.
        data_parallel_rank: this engine's number among them.
        pipeline_parallel_size: stages of the layers, each with as many ranks as share a layer.
        decode_context_parallel_size: ranks that share a layer and the tokens in its cache, each with a part of both.
        enable_expert_parallel: ranks that share a layer hold whole experts of a mixture, not a part of each.
        enable_dp_attention: engines hold whole experts together, and take their steps together.
        meeting_folder: where these engines find each other.
        expert_exchange: how their rows meet the experts: "auto", "gather", "all-to-all" or "mori".
        num_redundant_experts: copies of these beside the first of each, over all ranks.
        balance: when experts move between ranks; None where they stay.
        executor_backend: "mp" starts the ranks on this node, "ray" wherever Ray places them.
    """

    num_threads: int
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    data_parallel_rank: int = 0
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    enable_expert_parallel: bool = False
    enable_dp_attention: bool = False
    meeting_folder: Path | None = None
    expert_exchange: str = "auto"
    num_redundant_experts: int = 0
    balance: BalanceConfig | None = None
    executor_backend: ExecutorBackend = "mp"

    @property
    def ranks_of_engine(self) -> int:
        """Ranks of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def sharing_experts(self) -> int:
        """Engines that share their experts with this one, and itself."""
        return self.data_parallel_size if self.enable_dp_attention else 1

    @property
    def num_ranks(self) -> int:
        """Ranks of all engines, which share the host."""
        return self.ranks_of_engine * self.data_parallel_size

    @property
    def first_device(self) -> int:
        """The device of this engine's rank 0; its other ranks have the next ones."""
        return self.data_parallel_rank * self.ranks_of_engine

    def name_of(self, rank: int) -> str:
        """The folder for traces of a rank of this engine."""
        return f"rank_{rank}" if self.data_parallel_size == 1 else f"dp{self.data_parallel_rank}_tp{rank}"


@dataclass(frozen=True)
class CompileConfig:
    """How the model is compiled, and which of its steps are captured as graphs.

    Attributes:
        level: 0 is eager; see `atom_core.worker.model.compilation`.
        graph_mode: "full" captures whole steps, "piecewise" what is between attention layers, "full-and-piecewise"
            both, the latter for steps that no whole graph fits, "none" nothing.
        capture_sizes: batch sizes of the captured decodes, in rising order.
        batch_invariant: operators whose bits do not depend on the batch.
        warmup: when is compiled and captured what steps will need: "full" before the engine is ready, "background"
            between steps, "none" when a step needs it.
        graphs_required: they were asked for, so the engine does not go on without them.
        records_decodes: decode steps are recorded once and replayed, as a CPU does it (`RecordedDecodes`).
    """

    level: int = 0
    graph_mode: GraphMode = "none"
    capture_sizes: tuple[int, ...] = ()
    graphs_required: bool = False
    records_decodes: bool = False
    batch_invariant: bool = False
    warmup: Warmup = "none"


@dataclass(frozen=True)
class ProfilerConfig:
    """Where traces go (None: profiling is not set up) and what they hold."""

    directory: str | None = None
    more: bool = False
    mark_trace: bool = False


@dataclass(frozen=True)
class ImagesConfig:
    """What the model sees.

    Attributes:
        spec: which pictures it takes.
        most_tokens: tokens of the largest that fits a prompt, each as often as its `VisionSpec.depth`.
        cache_bytes: memory on each device for what was made of pictures, beside what running requests need.
    """

    spec: VisionSpec
    most_tokens: int
    cache_bytes: int


@dataclass(frozen=True)
class LoRAConfig:
    """How many low-rank adapters may be loaded at a time, and their largest rank."""

    max_loras: int
    max_rank: int


@dataclass(frozen=True)
class EngineConfig:
    """Everything an engine runs on. `choices` has a line for each value that was chosen for the user.

    `lora` is None where linears take no adapters, and `images` where the model reads text alone.
    """

    model: ModelConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    parallel: ParallelConfig
    compile: CompileConfig
    profiler: ProfilerConfig
    device: str
    structured_output: StructuredOutputConfig = field(default_factory=StructuredOutputConfig)
    speculation: SpeculationConfig | None = None
    lora: LoRAConfig | None = None
    images: ImagesConfig | None = None
    choices: tuple[str, ...] = ()

    @property
    def max_num_samples(self) -> int:
        """Tokens that one step samples at most."""
        max_num_seqs = self.scheduler.max_num_seqs
        return max_num_seqs if self.speculation is None else self.speculation.max_num_samples(max_num_seqs)
