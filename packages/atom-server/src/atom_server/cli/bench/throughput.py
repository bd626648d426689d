"""`atom bench throughput`: tokens a second of an engine in this process, all prompts at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from atom_core import EngineArgs
from atom_server.bench.offline import Batch, measure_throughput
from atom_server.bench.saved_results import save_json
from atom_server.cli.bench.load_flags import count
from atom_server.cli.logs import configure_logging

USAGE = "throughput [--model MODEL] [flags]"
DESCRIPTION = """\
Load a model in this process, and generate answers of full length to prompts of random tokens, all at once. Every flag
of the engine works here too (`atom serve --help`)."""
EXAMPLES = """\
examples:
  atom bench throughput --num-prompts 64 --input-len 256 --output-len 64
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The prompts, and the engine."""
    parser.add_argument("--num-prompts", type=count, default=1000, help="default: %(default)s")
    parser.add_argument("--input-len", type=count, default=1024, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--output-len", type=count, default=128, help="tokens of an answer (default: %(default)s)")
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the result there")
    EngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print, save."""
    configure_logging()
    batch = Batch(
        num_prompts=args.num_prompts, input_len=args.input_len, output_len=args.output_len, seed=args.seed or 0
    )
    with EngineArgs.from_cli_args(args).create_engine() as engine:
        result = measure_throughput(engine, batch)
    print(
        f"Throughput: {result['requests_per_second']:.2f} requests/s, {result['tokens_per_second']:.2f} total "
        f"tokens/s, {result['output_tokens_per_second']:.2f} output tokens/s"
    )
    if args.output_json is not None:
        print(f"written: {save_json(args.output_json, result)}")
    return 0
