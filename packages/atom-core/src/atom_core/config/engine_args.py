"""`EngineArgs`: every setting of the engine, flat, as flags and as keywords."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from atom_core.config.options import ConfigError, add_options, option, options_of
from atom_core.config.unbuilt import refuse_unbuilt

if TYPE_CHECKING:
    from atom_core.engine.llm_engine import LLMEngine

MODEL, CACHE, SCHEDULER, PARALLEL = "Model", "KV cache", "Scheduler", "Parallelism"
COMPILE, SPECULATION, PROFILER = "Compilation", "Speculation", "Profiling"
STRUCTURED = "Structured output"


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """The settings that people write; `atom_core.config.resolve_config` makes an `EngineConfig` of them.

    Every field is a keyword of `LLMEngine` and a flag, spelt in kebab or snake case. None means that the value is
    chosen at start, with a log line.

    Raises:
        ConfigError: a value that is not allowed, or a feature that is not built.
    """

    model: str = option(
        "smollm2", "Model folder, .gguf file, Hugging Face id, or a name known to `atom models`.", section=MODEL
    )
    revision: str | None = option(None, "Revision of a Hugging Face id.", section=MODEL)
    tokenizer: str | None = option(None, "Folder with tokenizer.json, where it is not the model's own.", section=MODEL)
    skip_tokenizer_init: bool = option(
        False, "Load no tokenizer: prompts are token ids and outputs carry no text.", kind="switch", section=MODEL
    )
    trust_remote_code: bool = option(
        False,
        "Refused: Python code of a model's repository is never run.",
        kind="switch",
        section=MODEL,
    )
    dtype: str = option(
        "auto",
        "Number format of weights and activations; auto takes what is fast on this machine.",
        section=MODEL,
        choices=("auto", "bfloat16", "float16", "float32"),
    )
    quantization: str = option(
        "none",
        "Number format to which plain weights of linears are rounded as they load; none leaves them as they are.",
        section=MODEL,
        choices=("none", "int8", "int4", "fp8", "fp8_block", "mxfp4"),
    )
    max_model_len: int | None = option(
        None,
        "Tokens of prompt and output together, at most; unset takes the model's own, or what the cache can hold.",
        kind="integer",
        section=MODEL,
        minimum=1,
    )
    load_dummy: bool = option(
        False, "Random weights in place of the checkpoint's (for tests).", kind="switch", section=MODEL
    )
    seed: int | None = option(
        None,
        "Base of the seeds that the engine draws for requests without one; unset draws a fresh one.",
        kind="integer",
        section=MODEL,
        minimum=0,
        maximum=2**63 - 1,
    )
    num_threads: int | None = option(
        None,
        "Threads that the engine computes with; unset takes every core it may use.",
        kind="integer",
        section=MODEL,
        minimum=1,
    )
    kv_cache_dtype: str = option(
        "auto",
        "Number format of the KV cache; auto is that of the model.",
        section=CACHE,
        choices=("auto", "bf16", "fp8"),
    )
    block_size: int = option(
        16, "Tokens in one block of the KV cache.", kind="integer", section=CACHE, minimum=1, maximum=1024
    )
    enable_prefix_caching: bool = option(
        True, "Requests that begin alike share the blocks of their common beginning.", kind="switch", section=CACHE
    )
    prefix_hash: str = option(
        "xxhash64",
        "Hash of the prefix cache; sha256 is keyed for each process.",
        section=CACHE,
        choices=("xxhash64", "sha256"),
    )
    gpu_memory_utilization: float = option(
        0.9,
        "Share of the device's memory that the engine may take (on a CPU: of the memory that is free at start).",
        kind="number",
        section=CACHE,
        minimum=0.01,
        maximum=1.0,
    )
    kv_cache_memory: int | None = option(
        None,
        "Memory of the KV cache, in bytes or as 2GiB; unset on a CPU takes what the requests can need, at most 2 GiB.",
        kind="bytes",
        section=CACHE,
        minimum=1,
    )
    strict_memory: bool = option(
        False,
        "Refuse to start where the KV cache cannot hold a request of max_model_len tokens, instead of lowering it.",
        kind="switch",
        section=CACHE,
    )
    num_kv_blocks: int | None = option(
        None, "Blocks of the KV cache, in place of kv_cache_memory.", kind="integer", section=CACHE, minimum=1
    )
    max_num_seqs: int = option(
        512, "Requests that run at once, at most.", kind="integer", section=SCHEDULER, minimum=1, maximum=65536
    )
    max_num_queued_requests: int | None = option(
        None,
        "Requests that may wait beside those that run: a server refuses more. Unset takes 4 times max_num_seqs.",
        kind="integer",
        section=SCHEDULER,
        minimum=0,
    )
    max_request_logprobs: int = option(
        2**21,
        "Log-probabilities that one request may ask for, over all its samples and tokens: an answer is kept whole in "
        "memory, with about 150 bytes for each.",
        kind="integer",
        section=SCHEDULER,
        minimum=0,
    )
    max_num_batched_tokens: int | None = option(
        None,
        "Tokens computed in one step, at most; unset takes 512 on a CPU and 16384 on a GPU.",
        kind="integer",
        section=SCHEDULER,
        minimum=1,
    )
    scheduler_delay_factor: float = option(
        0.0,
        "Wait this multiple of the last prompt's latency before the next prompt is scheduled.",
        kind="number",
        section=SCHEDULER,
        minimum=0.0,
    )
    async_scheduling: bool = option(
        True, "Schedule each step while the one before it still runs.", kind="switch", section=SCHEDULER
    )
    tensor_parallel_size: int = option(
        1, "Devices that share each layer.", kind="integer", section=PARALLEL, minimum=1, short="-tp"
    )
    data_parallel_size: int = option(
        1, "Engines that share the requests.", kind="integer", section=PARALLEL, minimum=1, short="-dp"
    )
    enable_expert_parallel: bool = option(False, "Spread experts over devices.", kind="switch", section=PARALLEL)
    enable_dp_attention: bool = option(False, "Data-parallel attention.", kind="switch", section=PARALLEL)
    port: int = option(
        8006,
        "Accepted for compatibility, and of no effect: engines of one node talk over a private socket file. "
        "In `atom serve` this flag is the server's.",
        kind="integer",
        section=PARALLEL,
        minimum=1,
        maximum=65535,
    )
    enforce_eager: bool = option(
        False, "Capture no graphs: every step is launched kernel by kernel.", kind="switch", section=COMPILE
    )
    level: int = option(
        0,
        "Compilation level: 0 eager, 1 traced as one graph, 2 compiled by inductor, 3 compiled between attentions.",
        kind="integer",
        section=COMPILE,
        choices=(0, 1, 2, 3),
    )
    cudagraph_mode: str | None = option(
        None,
        "What is captured in graphs on a GPU: none, whole decode steps and short prompts of a few requests (full), "
        "steps up to some size between their attention layers (piecewise), or both, the latter for the steps that are "
        "left (full-and-piecewise); unset takes both, or piecewise where attention cannot be captured whole.",
        section=COMPILE,
        choices=("none", "piecewise", "full", "full-and-piecewise"),
    )
    cudagraph_capture_sizes: tuple[int, ...] | None = option(
        None,
        "Batch sizes of decodes for which graphs are captured; unset takes 1, 2, 4, 8, 16, 24 ... up to max_num_seqs.",
        kind="integers",
        section=COMPILE,
        minimum=1,
    )
    batch_invariant: bool = option(
        False,
        "Give each request the same bits whatever else is in its batch; on a GPU this costs speed.",
        kind="switch",
        section=COMPILE,
    )
    method: str | None = option(None, "Speculative decoding method.", section=SPECULATION, choices=("mtp",))
    num_speculative_tokens: int = option(
        1, "Draft tokens of each step, where `method` is set.", kind="integer", section=SPECULATION, minimum=1
    )
    structured_output_backend: str = option(
        "auto",
        "Library that makes grammars' masks; auto takes xgrammar where it is installed, enforces all and is quick.",
        section=STRUCTURED,
        choices=("auto", "xgrammar", "llguidance"),
    )
    jump_forward: bool = option(
        True,
        "Take tokens that a grammar leaves no choice about without sampling them, several in one step.",
        kind="switch",
        section=STRUCTURED,
    )
    torch_profiler_dir: str | None = option(
        None, "Folder for profiler traces; unset takes ATOM_TORCH_PROFILER_DIR.", section=PROFILER
    )
    mark_trace: bool = option(False, "Mark each step by name in profiler traces.", kind="switch", section=PROFILER)

    def __post_init__(self) -> None:
        for entry in options_of(type(self)):
            object.__setattr__(self, entry.name, entry.check(getattr(self, entry.name)))
        if self.block_size != 1 and self.block_size % 16:
            raise ConfigError(f"block_size is {self.block_size}; it must be 1 or a multiple of 16")
        if self.kv_cache_memory is not None and self.num_kv_blocks is not None:
            raise ConfigError("kv_cache_memory and num_kv_blocks both size the KV cache; give one of them")
        refuse_unbuilt(self)

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
        """Build from keywords; an unknown one is a TypeError that names the nearest known one."""
        known = [entry.name for entry in options_of(cls)]
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
