"""What the engine itself adds to a step: everything but the model, whose logits are ready before it is asked."""

from __future__ import annotations

import argparse
import contextlib
import random
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import documents, machine, report, tables, timing

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
    parser.add_argument(
        "--processes", action="store_true", help="also with the runner in a process, as a rank of tensor parallel is"
    )
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
            result = {"batch_size": batch_size, "sampling": name} | taken["inline"].summary()
            if "process" in taken:
                added = taken["process"].median - taken["inline"].median
                result["process"] = taken["process"].summary() | {"added_ms": round(1e3 * added, 3)}
            results.append(result)
    logits = {"model": f"ready logits of {options.vocab_size} tokens", "dtype": "float32"}
    settings = logits | documents.flags_of(options, "threads", "turns", "steps")
    others = [interference.share()]
    document = documents.document_of("overhead", options, settings, idle=idle, others=others, results=results)
    print(tables.overhead_table(document))
    report.save_unless_doubtful(document, options)
    return 0


def measure(batch_size: int, sampling: dict[str, Any], *, options: argparse.Namespace) -> dict[str, timing.Timings]:
    """Steps of `EngineCore`s in which `batch_size` requests decode, by where the runner is."""
    num_tokens = (options.turns + 1) * (options.steps + 2) + 8
    places = {"inline": False, "process": True} if options.processes else {"inline": False}
    with contextlib.ExitStack() as engines:
        turns = {}
        for name, in_process in places.items():
            engine = make_engine(batch_size, options.context + num_tokens, options=options, in_process=in_process)
            engines.callback(engine.close)
            start_decoding(engine, batch_size, num_tokens, sampling=sampling, options=options)
            turns[name] = partial(timing.take_turn, engine.step)
        return timing.interleave(turns, turns=options.turns, steps=options.steps)


def start_decoding(
    engine: Any, batch_size: int, num_tokens: int, *, sampling: dict[str, Any], options: argparse.Namespace
) -> None:
    """Submit the requests, and run until each has a token."""
    source = random.Random(0)
    waiting = set()
    for index in range(batch_size):
        prompt = [source.randrange(options.vocab_size) for _ in range(options.context)]
        engine.add_request(_request(f"r{index}", prompt, num_tokens, sampling))
        waiting.add(f"r{index}")
    while waiting:
        waiting -= {output.request_id for output in engine.step() if output.new_token_ids}


def make_engine(batch_size: int, max_model_len: int, *, options: argparse.Namespace, in_process: bool = False) -> Any:
    """An `EngineCore` with the real runner and sampler, and a model that has its logits already.

    Args:
        in_process: the runner is in a process of its own, as each rank of tensor parallel is.
    """
    from atom_core.engine.engine_core import EngineCore
    from atom_core.executor import InlineExecutor
    from atom_core.executor.launchers.this_host import HostLauncher, this_python
    from atom_core.executor.processes.executor import ProcessExecutor
    from atom_core.executor.processes.rank_processes import RankProcesses
    from atom_core.worker.model_runner import ModelRunner

    config = _config(batch_size, max_model_len, options)
    if not in_process:
        return EngineCore(config, InlineExecutor(ModelRunner(config, ready_model)))
    launcher = HostLauncher(this_python("benchmarks.ready_rank"))
    return EngineCore(config, ProcessExecutor(config, partial(RankProcesses, launcher=launcher)))


def ready_model(config: Any, _: object = None) -> Any:
    """A model whose logits are there before it is asked; the same in every process."""
    import torch

    from atom_core.worker.model.engine_model import EngineModel

    batch_size, vocab_size = config.scheduler.max_num_seqs, config.model.vocab_size
    logits = torch.randn(batch_size, vocab_size, generator=torch.Generator().manual_seed(0)) * LOGIT_STD
    hidden_states = torch.zeros(config.scheduler.max_num_batched_tokens, 1)
    return EngineModel(
        run=lambda input_ids, positions: hidden_states[: len(input_ids)],
        compute_logits=lambda rows: logits[: len(rows)],
        mixers={},
    )


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
    from atom_kernels.protocols import CacheFormat

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
            format=CacheFormat("float32"),
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
