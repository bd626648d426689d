"""`atom bench`: a sub-command for each kind of measurement of a running server, or of an engine in this process."""

from __future__ import annotations

import argparse

from atom_server.cli.bench import accuracy, dashboard, latency, plot, serve, sweep, throughput

HELP = "measure a running server under load, an engine, or what quantization costs"
USAGE = "serve | sweep | throughput | latency | plot | dashboard | accuracy [flags]"
DESCRIPTION = """\
Measure a running server under load (serve, sweep), an engine in this process (throughput, latency), or what
quantization costs a model (accuracy); draw such measurements (plot, dashboard)."""
EXAMPLES = """\
examples:
  atom bench serve --num-prompts 100 --max-concurrency 16
  atom bench serve --base-url http://127.0.0.1:8000 --dataset-name random --random-input-len 1024 \\
    --random-output-len 128 --request-rate 4 --ignore-eos --save-result --plot run.svg
  atom bench sweep --concurrency 1 2 4 8 16 --ignore-eos --plot sweep.svg
  atom bench throughput --num-prompts 64 --input-len 256 --output-len 64
  atom bench plot run-*.json --plot runs.png
  atom bench accuracy --text book.txt --quantization fp8 int8 int4

`atom bench serve --help` lists the flags of serve, and so for each.
"""

_KINDS = (serve, sweep, throughput, latency, plot, dashboard, accuracy)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A sub-command for each kind of measurement."""
    kinds = parser.add_subparsers(dest="what", metavar="KIND", required=True)
    for module in _KINDS:
        kind = kinds.add_parser(
            module.__name__.rsplit(".", 1)[-1],
            usage=f"atom bench {module.USAGE}",
            description=module.DESCRIPTION,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(kind)
        kind.set_defaults(measure=module.run)


def run(args: argparse.Namespace) -> int:
    """Run that kind."""
    return args.measure(args)
