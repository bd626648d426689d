"""`EngineArgs`: every setting of the engine, flat, as flags and as keywords."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from atom_core.config.executor_backend import check_backend
from atom_core.config.kv_events import read_kv_events
from atom_core.config.kv_transfer import check_kv_transfer
from atom_core.config.lora.limits import read_lora
from atom_core.config.lora.modules import read_modules
from atom_core.config.offload import read_offload
from atom_core.config.options import ConfigError, add_options, option, options_of
from atom_core.config.other_names import with_own_names
from atom_core.config.parallel.dp_attention import read_dp_attention
from atom_core.config.speculation import METHODS, MOST_TOKENS, QUANTIZATIONS, read_speculation
from atom_core.config.unbuilt import refuse_code_from_afar, refuse_for_experts, refuse_in_stages
from atom_kernels.protocols.cache_format import CACHE_DTYPES

if TYPE_CHECKING:
    from atom_core.engine.llm_engine import LLMEngine

_model = partial(option, section="Model")
_cache = partial(option, section="KV cache")
_scheduler = partial(option, section="Scheduler")
_parallel = partial(option, section="Parallelism")
_compile = partial(option, section="Compilation")
_speculation = partial(option, section="Speculation")
_lora = partial(option, section="LoRA")
_images = partial(option, section="Pictures")
_structured = partial(option, section="Structured output")
_profiler = partial(option, section="Profiling")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """The settings that people write; `atom_core.config.resolve_config` makes an `EngineConfig` of them.

    Every field is a keyword of `LLMEngine` and a flag, spelt in kebab or snake case. None means that the value is
    chosen at start, with a log line.

    Raises:
        ConfigError: a value that is not allowed, or a feature that is not built.
    """

    model: str = _model("smollm2", "Model folder, .gguf file, Hugging Face id, or a name known to `atom models`.")
    revision: str | None = _model(None, "Revision of a Hugging Face id.")
    tokenizer: str | None = _model(
        None, "Folder with tokenizer.json or tiktoken.model, where it is not the model's own."
    )
    skip_tokenizer_init: bool = _model(False, "Load no tokenizer: prompts are token ids and outputs carry no text.")
    trust_remote_code: bool = _model(
        False,
        "Run Python code of a local model folder that reads its configuration and tokenizer, once at start, in a "
        "process of its own (see models.md). Code of models never runs.",
    )
    dtype: str = _model(
        "auto",
        "Number format of weights and activations; auto takes what is fast on this machine.",
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    quantization: str = _model(
        "auto",
        "Number format to which plain weights of linears are rounded as they load; auto holds them as the checkpoint "
        "does, none also makes those of GGUF files plain numbers.",
        choices=QUANTIZATIONS,
    )
    model_impl: str = _model(
        "auto",
        "Code that runs the model: atom is our own, transformers takes that library's layers over our attention and "
        "scheduler; auto is our own where there is one.",
        choices=("auto", "atom", "transformers"),
    )
    max_model_len: int | None = _model(
        None,
        "Tokens of prompt and output together, at most; unset takes the model's own, or what the cache can hold.",
        minimum=1,
    )
    load_dummy: bool = _model(False, "Random weights in place of the checkpoint's (for tests).")
    seed: int | None = _model(
        None,
        "Base of the seeds that the engine draws for requests without one; unset draws a fresh one.",
        minimum=0,
        maximum=2**63 - 1,
    )
    num_threads: int | None = _model(
        None,
        "Threads that each rank computes with; unset shares the cores that the engines may use among all ranks.",
        minimum=1,
        within_cores=True,
    )
    kv_cache_dtype: str = _cache(
        "auto",
        "Number format of the KV cache; auto is that of the model.",
        choices=CACHE_DTYPES,
    )
    block_size: int = _cache(16, "Tokens in one block of the KV cache.", minimum=1, maximum=1024)
    enable_prefix_caching: bool = _cache(True, "Requests that begin alike share the blocks of their common beginning.")
    prefix_hash: str = _cache(
        "xxhash64", "Hash of the prefix cache; sha256 is keyed for each process.", choices=("xxhash64", "sha256")
    )
    gpu_memory_utilization: float = _cache(
        0.9,
        "Share of the device's memory that the engine may take (on a CPU: of the memory that is free at start).",
        minimum=0.01,
        maximum=1.0,
    )
    kv_cache_memory: int | None = _cache(
        None,
        "Memory of the KV cache on each device, in bytes or as 2GiB; unset on a CPU takes what the requests can need, "
        "at most 2 GiB over all ranks.",
        kind="bytes",
        minimum=1,
    )
    kv_events_config: Mapping[str, Any] | None = _cache(
        None,
        "Tell routers what the prefix cache stores and forgets, over ZMQ, as in vLLM: an object of JSON such as "
        '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"} (see kv-events.md).',
    )
    kv_transfer_config: Mapping[str, Any] | None = _cache(
        None,
        "Compute prompts for another engine, or go on from those of another one, as in vLLM: an object of JSON such as "
        '{"kv_connector": "TcpConnector", "kv_role": "kv_producer"} (see prefill-apart.md).',
    )
    strict_memory: bool = _cache(
        False,
        "Refuse to start where the KV cache cannot hold a request of max_model_len tokens, instead of lowering it.",
    )
    num_kv_blocks: int | None = _cache(None, "Blocks of the KV cache, in place of kv_cache_memory.", minimum=1)
    kv_offload_memory: int | None = _cache(
        None,
        "Host memory for blocks that leave the KV cache and may come back, over all ranks of an engine, in bytes or as "
        "8GiB; unset forgets them (see kv-offload.md).",
        kind="bytes",
        minimum=1 << 10,
    )
    kv_offload_folder: str | None = _cache(
        None, "Folder on a disk for further blocks that left; needs kv_offload_disk."
    )
    kv_offload_disk: int | None = _cache(
        None, "Bytes of the disk that kv_offload_folder may take, such as 100GiB.", kind="bytes", minimum=1 << 10
    )
    max_num_seqs: int = _scheduler(512, "Requests that run at once, at most.", minimum=1, maximum=65536)
    max_num_queued_requests: int | None = _scheduler(
        None,
        "Requests that may wait beside those that run: a server refuses more. Unset takes 4 times max_num_seqs.",
        minimum=0,
    )
    max_num_queued_tokens: int | None = _scheduler(
        None,
        "Tokens of the prompts of all requests that run or wait: a server refuses more. Unset takes 4 times what the "
        "KV cache holds, and 2097152 at least.",
        minimum=1,
    )
    priority_ageing: float = _scheduler(
        10.0,
        "Seconds of waiting that are worth one step of priority; 0 lets none go before a more urgent one, however long "
        "it waits.",
        minimum=0,
    )
    max_request_seconds: float | None = _scheduler(
        None,
        "Seconds from the arrival of a request in the engine's queue after which it is ended with an error, wherever "
        "it is; without this there is no limit.",
        minimum=0.001,
    )
    max_request_logprobs: int = _scheduler(
        2**21,
        "Log-probabilities that one request may ask for, over all its samples and tokens: an answer is kept whole in "
        "memory, with about 150 bytes for each.",
        minimum=0,
    )
    max_num_batched_tokens: int | None = _scheduler(
        None, "Tokens computed in one step, at most; unset takes 512 on a CPU and 16384 on a GPU.", minimum=1
    )
    scheduler_delay_factor: float = _scheduler(
        0.0, "Wait this multiple of the last prompt's latency before the next prompt is scheduled.", minimum=0.0
    )
    step_timeout: float | None = _scheduler(
        None,
        "Seconds without the end of a step, or without a word of the engine's process, after which it counts as hung "
        "and is ended; captures and compilations are not counted. Unset takes 60 for the first 100 steps, then 20 "
        "times what the longest step took, and 10 at least.",
        minimum=0.1,
    )
    async_scheduling: bool = _scheduler(True, "Schedule each step while the one before it still runs.")
    tensor_parallel_size: int = _parallel(
        1, "Devices that share each layer, with a process for each (see tensor-parallel.md).", minimum=1, short="-tp"
    )
    data_parallel_size: int = _parallel(
        1,
        "Engines that share the requests, with processes and devices of their own (see data-parallel.md).",
        minimum=1,
        within_cores=True,
        short="-dp",
    )
    pipeline_parallel_size: int = _parallel(
        1,
        "Stages that each hold some of the layers, on devices of their own (see pipeline-parallel.md).",
        minimum=1,
        short="-pp",
    )
    decode_context_parallel_size: int = _parallel(
        1,
        "Devices, of those that share a layer, that each keep a part of the tokens of latent attention (see "
        "tensor-parallel.md).",
        minimum=1,
    )
    distributed_executor_backend: str = _parallel(
        "mp",
        "What starts the ranks: mp starts a process for each on this node, ray one for each wherever Ray places it "
        "(see many-nodes.md).",
        choices=("mp", "ray"),
    )
    enable_expert_parallel: bool = _parallel(
        False,
        "Each of the devices that share a layer holds whole experts of a mixture, in place of a part of every expert "
        "(see tensor-parallel.md).",
    )
    num_redundant_experts: int = _parallel(
        0,
        "Further copies of experts, beside the first of each, with enable_expert_parallel: ranks hold as many each.",
        minimum=0,
    )
    enable_eplb: bool = _parallel(
        False,
        "Move experts between devices while the engine runs, so that these have about as many rows to compute; with "
        "enable_expert_parallel.",
    )
    eplb_window_size: int = _parallel(
        1000, "Steps before each such move whose rows are counted; at most eplb_step_interval.", minimum=1
    )
    eplb_step_interval: int = _parallel(3000, "Steps from one such move to the next.", minimum=1)
    enable_dp_attention: bool = _parallel(
        False,
        "Engines that each attend to requests of their own share the experts of a mixture: one for each of "
        "tensor_parallel_size, or data_parallel_size of them (see dp-attention.md).",
    )
    expert_exchange: str = _parallel(
        "auto",
        "How rows meet the experts that engines share, with enable_dp_attention: gather gives all rows to all devices, "
        "all-to-all each row to the devices that own one of its experts, and mori does the same by AMD's MORI; auto "
        "takes mori where it is there, and else what should be faster in a step.",
        choices=("auto", "gather", "all-to-all", "mori"),
    )
    port: int = _parallel(
        8006,
        "Accepted for compatibility, and of no effect: engines of one node talk over a private socket file. "
        "In `atom serve` this flag is the server's.",
        minimum=1,
        maximum=65535,
    )
    enforce_eager: bool = _compile(False, "Capture no graphs, and record no steps on a CPU: call kernels one by one.")
    level: int = _compile(
        0,
        "Compilation level: 0 eager, 1 traced as one graph, 2 compiled by inductor, 3 compiled between attentions.",
        choices=(0, 1, 2, 3),
    )
    cudagraph_mode: str | None = _compile(
        None,
        "What is captured in graphs on a GPU: none, whole decode steps and short prompts of a few requests (full), "
        "steps up to some size between their attention layers (piecewise), or both, the latter for the steps that are "
        "left (full-and-piecewise); unset takes both, or piecewise where attention cannot be captured whole.",
        choices=("none", "piecewise", "full", "full-and-piecewise"),
    )
    cudagraph_capture_sizes: tuple[int, ...] | None = _compile(
        None,
        "Batch sizes of decodes for which graphs are captured; unset takes 1, 2, 4, 8, 16, 24 ... up to max_num_seqs.",
        minimum=1,
    )
    warmup: str | None = _compile(
        None,
        "When a GPU's kernels are compiled and graphs captured: full before the engine is ready, so that no request "
        "waits for a compiler; background once it is ready, in slices between steps and while it is idle, during "
        "which steps are slower; none when the first step needs them, which waits. Unset takes full in a server, "
        "whose traffic comes when it says that it is ready and is then served at full speed, and none in a program, "
        "whose own first request is what it waits for.",
        choices=("none", "background", "full"),
    )
    batch_invariant: bool = _compile(
        False, "Give each request the same bits whatever else is in its batch; on a GPU this costs speed."
    )
    method: str | None = _speculation(
        None,
        "Speculative decoding: how the next tokens are guessed, which never changes them. ngram goes on as the request "
        "did after the same tokens before; suffix as it and earlier outputs of the same key or salt most often did; "
        "mtp takes the model's own prediction layers; eagle and eagle3 a head, and draft_model a whole model, that "
        "`draft_model` names. No guesses are made where they would not save time.",
        choices=METHODS,
    )
    draft_model: str | None = _speculation(
        None,
        "Folder, .gguf file or name of the small model that guesses, of the same tokenizer; alone it means method "
        "draft_model. For the methods eagle and eagle3 it is the head.",
    )
    num_speculative_tokens: int | None = _speculation(
        None,
        "Draft tokens of a request in each step, at most, where `method` is set; unset takes 1, for draft_model 4, and "
        "for suffix 15.",
        minimum=1,
        maximum=MOST_TOKENS,
    )
    speculative_config: Mapping[str, Any] | None = _speculation(
        None,
        "The same as JSON, in vLLM's spelling: method, model (the folder or name of a head or model), "
        "num_speculative_tokens, and adaptive (false makes guesses wherever there are any). For draft_model "
        "quantization, as `quantization` is for the model itself. For ngram prompt_lookup_min and prompt_lookup_max: "
        "last tokens that must have come before, at least, and those compared at most (2 and 5). For suffix "
        "suffix_decoding_max_tree_depth (tokens compared and guessed together, 24), _max_cached_requests (outputs that "
        "are kept, 10000; 0 looks into the request alone), _max_spec_factor (guesses for each token that agrees, 1) "
        "and _min_token_prob (part of the places where a guess must have followed, 0.1).",
    )
    enable_lora: bool = _lora(
        False, "Linears take low-rank adapters, which are loaded while the server runs (see lora.md)."
    )
    lora_modules: Mapping[str, str] | None = _lora(
        None,
        "Adapters to load at the start, each as name=path of a folder that PEFT saved; a request's model names one. "
        "They imply enable_lora.",
        kind="words",
        read=read_modules,
    )
    max_loras: int = _lora(8, "Adapters that are loaded at a time, at most.", minimum=1, maximum=256)
    max_lora_rank: int = _lora(16, "The largest rank of an adapter.", minimum=1, maximum=512)
    language_model_only: bool = _images(
        False, "Read text alone: the part of the model that sees pictures is not loaded (see images.md)."
    )
    max_num_image_tokens: int | None = _images(
        None,
        "Tokens of the pictures that one step encodes, at most; larger pictures are made smaller. Unset takes those of "
        "the largest picture that the model was made for, or max_num_batched_tokens where these are more.",
        minimum=1,
    )
    image_cache_memory: int = _images(
        256 << 20,
        "Memory on each device for what was made of pictures, so that those that come again are not encoded again, in "
        "bytes or as 256MiB. What running requests need is kept beside that.",
        kind="bytes",
        minimum=0,
    )
    structured_output_backend: str = _structured(
        "auto",
        "Library that makes grammars' masks; auto takes xgrammar where it is installed, enforces all and is quick.",
        choices=("auto", "xgrammar", "llguidance"),
    )
    jump_forward: bool = _structured(
        True, "Take tokens that a grammar leaves no choice about without sampling them, several in one step."
    )
    torch_profiler_dir: str | None = _profiler(None, "Folder for profiler traces; unset takes ATOM_TORCH_PROFILER_DIR.")
    mark_trace: bool = _profiler(
        False,
        "Name each step and each module in profiler traces, for `atom trace`. Unless one is asked for, a trace of the "
        "first 64 steps is written.",
    )

    def __post_init__(self) -> None:
        entries = {entry.name: entry for entry in options_of(type(self))}
        for name, entry in entries.items():
            object.__setattr__(self, name, entry.check(getattr(self, name)))
        for name, value in read_dp_attention(self).items():
            object.__setattr__(self, name, entries[name].check(value))
        if self.block_size != 1 and self.block_size % 16:
            raise ConfigError(f"block_size is {self.block_size}; it must be 1 or a multiple of 16")
        if self.kv_cache_memory is not None and self.num_kv_blocks is not None:
            raise ConfigError("kv_cache_memory and num_kv_blocks both size the KV cache; give one of them")
        read_offload(self)
        check_kv_transfer(self)
        refuse_code_from_afar(self)
        refuse_for_experts(self)
        check_backend(self)
        refuse_in_stages(self, read_speculation(self))
        read_lora(self)
        if read_kv_events(self.kv_events_config) is not None and not self.enable_prefix_caching:
            raise ConfigError("kv_events_config tells of cached prefixes: leave enable_prefix_caching on")

    @classmethod
    def add_cli_args(
        cls, parser: argparse.ArgumentParser, *, leave_out: Collection[str] = ()
    ) -> argparse.ArgumentParser:
        """Add every flag to `parser` but those of the fields to `leave_out`, and return it."""
        add_options(parser, cls, leave_out=leave_out)
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace, *, leave_out: Collection[str] = ()) -> EngineArgs:
        """Take the engine's settings out of a parsed namespace; it may hold other flags too.

        Fields to `leave_out` keep their defaults: the namespace has something else under their names.
        """
        names = [entry.name for entry in options_of(cls) if entry.name not in leave_out]
        given = {name: getattr(args, name, None) for name in names}
        return cls(**{name: value for name, value in given.items() if value is not None})

    @classmethod
    def from_keywords(cls, **keywords: Any) -> EngineArgs:
        """Build from keywords; an unknown one is a TypeError that names the nearest known one.

        Keywords of ROCm/ATOM that have other names here are taken too (see `with_own_names`).
        """
        known = [entry.name for entry in options_of(cls)]
        keywords = with_own_names(keywords)
        for name in keywords:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise TypeError(f"unknown engine setting {name!r}{hint}")
        return cls(**keywords)

    def create_engine(self) -> LLMEngine:
        """An inline `LLMEngine` of these settings."""
        from atom_core.engine.llm_engine import LLMEngine

        return LLMEngine.from_args(self)
