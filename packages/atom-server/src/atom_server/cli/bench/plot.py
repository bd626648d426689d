"""`atom bench plot`: draws saved results of `atom bench serve`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from atom_server.bench.outcome import BenchError
from atom_server.bench.pages.charts import check_chart, draw_runs

USAGE = "plot RESULT... [--plot FILE]"
DESCRIPTION = "Draw saved results of `atom bench serve`."
EXAMPLES = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The results, and where to draw them."""
    parser.add_argument("results", nargs="*", type=Path, metavar="RESULT", help="saved results to draw")
    parser.add_argument("--plot", type=Path, metavar="FILE", default=Path("runs.svg"), help="default: %(default)s")


def run(args: argparse.Namespace) -> int:
    """Draw them."""
    check_chart(args.plot)
    try:
        draw_runs(args.plot, [json.loads(result.read_text(encoding="utf-8")) for result in args.results])
    except ValueError as error:
        raise BenchError(f"a result cannot be read: {error}") from None
    print(f"drawn: {args.plot}")
    return 0
