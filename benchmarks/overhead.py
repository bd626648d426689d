"""What the engine itself adds to a step: everything but the model, whose logits are ready before it is asked."""

from __future__ import annotations

import argparse
import random
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine, report, timing

VOCAB_SIZE = 49152
# As sharp as a language model's logits are: a nucleus of 0.9 then holds some hundred tokens.
LOGIT_STD = 4.0
SAMPLING = {"greedy": {"temperature": 0.0}, "top-p 0.9": {"temperature": 1.0, "top_p": 0.9, "seed": 1}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks overhead`."""
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--context", type=int, default=512, help="tokens of each request before decoding starts")
    parser.add_argument("--vocab-size", type=int, default=VOCAB_SIZE)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="timed steps in a turn")
    report.add_saving_flags(parser)


def run(options: argparse.Namespace) -> int:
    """Measure, print the table, write the JSON."""
    idle = machine.idle_share()
    interference = machine.Interference()
    results = []
    for batch_size in options.batch_sizes:
        for name, sampling in SAMPLING.items():
            taken = measure(batch_size, sampling, options=options)
            results.append({"batch_size": batch_size, "sampling": name} | taken.summary())
    document: dict[str, Any] = {
        "benchmark": "overhead",
        "machine": machine.describe(options.commit),
        "settings": {
            "model": f"ready logits of {options.vocab_size} tokens",
            "dtype": "float32",
            "threads": options.threads,
            "turns": options.turns,
            "steps": options.steps,
        },
        "idle_share_before": idle,
        "quiet": idle is None or idle >= machine.QUIET_IDLE_SHARE,
        "share_used_by_others": interference.share(),
        "results": results,
    }
    print(report.overhead_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def measure(batch_size: int, sampling: dict[str, Any], *, options: argparse.Namespace) -> timing.Timings:
    """Steps of an `EngineCore` in which `batch_size` requests decode."""
    num_tokens = (options.turns + 1) * (options.steps + 2) + 8
    engine = make_engine(batch_size, options.context + num_tokens, options=options)
    try:
        source = random.Random(0)
        waiting = set()
        for index in range(batch_size):
            prompt = [source.randrange(options.vocab_size) for _ in range(options.context)]
            engine.add_request(_request(f"r{index}", prompt, num_tokens, sampling))
            waiting.add(f"r{index}")
        while waiting:
            waiting -= {output.request_id for output in engine.step() if output.new_token_ids}
        turn = partial(timing.take_turn, engine.step)
        return timing.interleave({"atom": turn}, turns=options.turns, steps=options.steps)["atom"]
    finally:
        engine.close()


def make_engine(batch_size: int, max_model_len: int, *, options: argparse.Namespace) -> Any:
    """An `EngineCore` with the real runner and sampler, and a model that has its logits already."""
    import torch

    from atom_core.engine.engine_core import EngineCore
    from atom_core.executor import InlineExecutor
    from atom_core.worker.model.engine_model import EngineModel
    from atom_core.worker.model_runner import ModelRunner

    logits = torch.randn(batch_size, options.vocab_size, generator=torch.Generator().manual_seed(0)) * LOGIT_STD
    hidden_states = torch.zeros(options.context, 1)
    model = EngineModel(
        run=lambda input_ids, positions: hidden_states[: len(input_ids)],
        compute_logits=lambda rows: logits[: len(rows)],
        mixers={},
    )
    config = _config(batch_size, max_model_len, options)
    return EngineCore(config, InlineExecutor(ModelRunner(config, load_model=lambda *_: model)))


def _config(batch_size: int, max_model_len: int, options: argparse.Namespace) -> Any:
    from atom_core.config.sections import (
        CacheConfig,
        CompileConfig,
        EngineConfig,
        ModelConfig,
        ParallelConfig,
        ProfilerConfig,
    )
    from atom_core.scheduler import SchedulerConfig

    return EngineConfig(
        model=ModelConfig(
            name="ready-logits",
            path=Path("."),
            architecture="none",
            dtype="float32",
            max_model_len=max_model_len,
            max_model_len_given=True,
            vocab_size=options.vocab_size,
            eos_token_ids=(),
        ),
        cache=CacheConfig(
            block_size=16,
            kv_cache_dtype="float32",
            enable_prefix_caching=True,
            prefix_hash="xxhash64",
            memory_utilization=0.9,
            num_blocks=batch_size * (max_model_len // 16 + 2),
        ),
        scheduler=SchedulerConfig(
            max_num_seqs=batch_size, max_num_batched_tokens=options.context, max_model_len=max_model_len
        ),
        parallel=ParallelConfig(num_threads=options.threads),
        compile=CompileConfig(),
        profiler=ProfilerConfig(),
        device="cpu",
    )


def _request(request_id: str, prompt: list[int], num_tokens: int, sampling: dict[str, Any]) -> Any:
    from atom_core.messages import EngineRequest, SamplingParams

    params = SamplingParams(**sampling, max_tokens=num_tokens, ignore_eos=True)
    return EngineRequest(request_id=request_id, token_ids=prompt, sampling_params=params)
