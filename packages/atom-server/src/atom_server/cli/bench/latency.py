"""`atom bench latency`: seconds that one batch takes from prompts to whole answers, in an engine in this process."""

from __future__ import annotations

import argparse
from pathlib import Path

from atom_core import EngineArgs
from atom_server.bench.offline import Batch, measure_latency
from atom_server.bench.saved_results import save_json
from atom_server.cli.bench.load_flags import count
from atom_server.cli.logs import configure_logging

USAGE = "latency [--model MODEL] [flags]"
DESCRIPTION = """\
Load a model in this process, and time one batch of random prompts with answers of full length, again and again. Every
flag of the engine works here too (`atom serve --help`)."""
EXAMPLES = """\
examples:
  atom bench latency --batch-size 8 --input-len 32 --output-len 128
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The batch, how often, and the engine."""
    parser.add_argument("--batch-size", type=count, default=8, help="prompts (default: %(default)s)")
    parser.add_argument("--input-len", type=count, default=32, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--output-len", type=count, default=128, help="tokens of an answer (default: %(default)s)")
    parser.add_argument("--num-iters-warmup", type=count, default=10, help="not counted (default: %(default)s)")
    parser.add_argument("--num-iters", type=count, default=30, help="counted (default: %(default)s)")
    parser.add_argument("--output-json", type=Path, metavar="FILE", help="write the result there")
    EngineArgs.add_cli_args(parser)


def run(args: argparse.Namespace) -> int:
    """Measure, print, save."""
    configure_logging()
    batch = Batch(
        num_prompts=args.batch_size, input_len=args.input_len, output_len=args.output_len, seed=args.seed or 0
    )
    with EngineArgs.from_cli_args(args).create_engine() as engine:
        result = measure_latency(engine, batch, num_warmups=args.num_iters_warmup, num_turns=args.num_iters)
    print(f"Avg latency: {result['avg_latency']:.4f} seconds")
    for share, seconds in result["percentiles"].items():
        print(f"{share}% percentile latency: {seconds:.4f} seconds")
    if args.output_json is not None:
        print(f"written: {save_json(args.output_json, result)}")
    return 0
