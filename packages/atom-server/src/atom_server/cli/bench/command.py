"""`atom bench`: how fast a running server answers (`serve`, `plot`), and what quantization costs (`accuracy`)."""

from __future__ import annotations

import argparse

from atom_server.cli.bench import accuracy, plot, serve

HELP = "measure a running server under load, or what quantization costs"
USAGE = "serve [--base-url URL] [flags] | plot RESULT... [--plot FILE] | accuracy --text FILE [flags]"
DESCRIPTION = "Measure a running server under load, draw such measurements, or tell what quantization costs a model."
EXAMPLES = """\
examples:
  atom bench serve --num-prompts 100 --max-concurrency 16
  atom bench serve --base-url http://127.0.0.1:8000 --dataset-name random --random-input-len 1024 \\
    --random-output-len 128 --request-rate 4 --ignore-eos --save-result --plot run.svg
  atom bench plot run-*.json --plot runs.png
  atom bench accuracy --text book.txt --quantization fp8 int8 int4

`atom bench serve --help` and `atom bench accuracy --help` list their flags.
"""

_KINDS = (serve, plot, accuracy)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A sub-command for each kind of measurement."""
    kinds = parser.add_subparsers(dest="what", metavar="serve | plot | accuracy", required=True)
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
