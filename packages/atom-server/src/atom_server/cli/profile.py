"""`atom profile`: records what an engine runs for a few prompts, and prints where the trace is."""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

from atom_core import EngineArgs, SamplingParams
from atom_server.cli.bench.load_flags import count
from atom_server.cli.logs import configure_logging

if TYPE_CHECKING:
    from atom_core import LLMEngine

HELP = "record a profiler trace of a few prompts"
USAGE = "[--model MODEL] [flags]"
DESCRIPTION = """\
Load a model in this process, generate once to warm up and once under the profiler, and print the folder of the trace.
Every flag of the engine works here too (`atom serve --help`); --mark-trace names modules for `atom trace`."""
SETTINGS = (EngineArgs,)
EXAMPLES = """\
examples:
  atom profile --model smollm2 --mark-trace
  atom profile --random-input --input-length 1024 --output-length 32 --bs 4
"""
FOLDER = "./profiler_traces"
_TEXT = "The history of computing is longer than that of electronics, and it began with people who wrote tables. "


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The prompts, and the engine."""
    parser.add_argument("--input-length", type=count, default=128, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--output-length", type=count, default=32, help="tokens of an answer (default: %(default)s)")
    parser.add_argument("--bs", type=count, default=1, help="prompts at once (default: %(default)s)")
    parser.add_argument("--random-input", action="store_true", help="prompts of random tokens in place of a text")
    EngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Generate, record, print."""
    configure_logging()
    args.torch_profiler_dir = args.torch_profiler_dir or FOLDER
    engine = EngineArgs.from_cli_args(args).create_engine()
    params = SamplingParams(temperature=0.0, max_tokens=args.output_length, ignore_eos=True)
    folder = Path(args.torch_profiler_dir)
    started = time.time()
    try:
        engine.generate(_prompts(engine, args, seed=1), params, use_tqdm=False)
        engine.start_profile()
        engine.generate(_prompts(engine, args, seed=0), params, use_tqdm=False)
        engine.stop_profile()
    finally:
        engine.close()
    for path in sorted(folder.glob("*/*.json.gz")):
        if path.stat().st_mtime >= started - 1:
            print(f"written: {path}")
    return 0


def _prompts(engine: LLMEngine, args: argparse.Namespace, *, seed: int) -> list[list[int]]:
    """Prompts that differ from each other in their first token, so that no prefix is found."""
    source, vocab_size = random.Random(seed), engine.info.vocab_size
    if args.random_input or engine.tokenizer is None:
        return [[source.randrange(vocab_size) for _ in range(args.input_length)] for _ in range(args.bs)]
    text = engine.tokenizer.encode(_TEXT)
    tokens = (text * (args.input_length // len(text) + 1))[: args.input_length - 1]
    return [[source.randrange(vocab_size), *tokens] for _ in range(args.bs)]
