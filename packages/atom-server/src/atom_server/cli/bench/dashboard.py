"""`atom bench dashboard`: one static page from saved results."""

from __future__ import annotations

import argparse
from pathlib import Path

from atom_server.bench.dashboard.dashboard import write_dashboard
from atom_server.bench.outcome import BenchError

USAGE = "dashboard RESULT... [--trace FILE ...] [--output FILE]"
DESCRIPTION = """\
Write one page that needs nothing else: throughput against latency, trends of equal loads with regressions marked (5 %
less throughput, 10 % more latency), accuracy, and the files. Results are those of `atom bench serve`, `sweep` and
`accuracy`, and of `python -m benchmarks served`; a commit comes by `--metadata commit=...`."""
EXAMPLES = """\
examples:
  atom bench dashboard runs/*.json --output dashboard.html
  atom bench dashboard runs/*.json --trace profiler_traces/rank_0/*.json.gz --fail-on-regression
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files."""
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT", help="saved results to show")
    parser.add_argument("--trace", nargs="+", type=Path, default=[], metavar="FILE", help="traces to link to")
    parser.add_argument("--output", type=Path, default=Path("dashboard.html"), help="default: %(default)s")
    parser.add_argument("--fail-on-regression", action="store_true", help="end with 1 where something became worse")


def run(args: argparse.Namespace) -> int:
    """Write it, and name what became worse."""
    if not args.output.parent.is_dir():
        raise BenchError(f"--output {args.output}: there is no folder {args.output.parent}")
    worse = write_dashboard(args.output, args.results, args.trace)
    for change in worse:
        print(f"regression: {', '.join(change.regressions)} of {', '.join(change.run.subject)} ({change.run.file})")
    print(f"written: {args.output}")
    return 1 if worse and args.fail_on_regression else 0
