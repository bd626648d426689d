"""`atom bench sweep`: the same load with more and more requests at once; shows what throughput costs in latency."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from atom_server.bench import event_loop
from atom_server.bench.knee import knee
from atom_server.bench.origin import origin
from atom_server.bench.outcome import BenchError
from atom_server.bench.pages.charts import check_chart, draw_runs
from atom_server.bench.saved_results import save_json
from atom_server.cli.bench.load import measure_load
from atom_server.cli.bench.load_flags import add_load_flags, count
from atom_server.cli.columns import columns

USAGE = "sweep [--concurrency N ...] [flags of serve]"
DESCRIPTION = """\
Run `atom bench serve` with each number of requests at once, and print throughput against latency. The knee of the curve
is marked: beyond it, more requests at once buy little throughput for much latency."""
EXAMPLES = """\
examples:
  atom bench sweep --concurrency 1 2 4 8 16 --random-input-len 512 --random-output-len 128 --ignore-eos
  atom bench sweep --prompts-per-stream 20 --json sweep.json --plot sweep.svg
"""
_TITLES = ("at once", "requests/s", "output tokens/s", "first token, median", "per token, median", "whole, p99", "")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The loads, and what to keep of them."""
    add_load_flags(parser)
    sweep = parser.add_argument_group("sweep")
    sweep.add_argument(
        "--concurrency", type=count, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="default: %(default)s"
    )
    sweep.add_argument("--prompts-per-stream", type=count, default=10, help="requests of each load (default: 10)")
    sweep.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    sweep.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves into a .png, .svg or .pdf")


def run(args: argparse.Namespace) -> int:
    """Measure each load, print the table, save, draw; 1 where requests failed."""
    if args.plot is not None:
        check_chart(args.plot)
    if args.json is not None and not args.json.parent.is_dir():
        raise BenchError(f"--json {args.json}: there is no folder {args.json.parent}")
    results = [_measure(args, at_once) for at_once in sorted(set(args.concurrency))]
    at_knee = knee([(result["median_e2el_ms"], result["output_throughput"]) for result in results])
    rows = [_cells(result, is_knee=index == at_knee) for index, result in enumerate(results)]
    print("\n".join(columns([_TITLES, *rows])))
    if args.json is not None:
        document = {"benchmark": "sweep", "knee": results[at_knee]["max_concurrency"], "machine": origin()}
        print(f"written: {save_json(args.json, document | {'results': results})}")
    if args.plot is not None:
        draw_runs(args.plot, results, at_knee=at_knee)
        print(f"drawn: {args.plot}")
    return 1 if any(result["failed"] for result in results) else 0


def _measure(args: argparse.Namespace, at_once: int) -> dict[str, Any]:
    args.max_concurrency, args.num_prompts = at_once, at_once * args.prompts_per_stream
    return event_loop.run(measure_load(args)).result


def _cells(result: dict[str, Any], *, is_knee: bool) -> tuple[str, ...]:
    highest = max((name for name in result if name.startswith("p") and name.endswith("_e2el_ms")), key=_share)
    return (
        str(result["max_concurrency"]),
        f"{result['request_throughput']:.2f}",
        f"{result['output_throughput']:.1f}",
        f"{result['median_ttft_ms']:.1f} ms",
        f"{result['median_tpot_ms']:.2f} ms",
        f"{result[highest]:.0f} ms",
        "knee" if is_knee else "",
    )


def _share(key: str) -> float:
    return float(key[1:].partition("_")[0])
