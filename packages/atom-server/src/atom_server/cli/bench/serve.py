"""`atom bench serve`: measures a running server under load."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from atom_server import settings
from atom_server.bench import event_loop
from atom_server.bench.metrics import table
from atom_server.bench.pages.charts import check_chart, draw_run
from atom_server.bench.pages.report import check_report, write_report
from atom_server.bench.saved_results import details, pytorch_records, save_json
from atom_server.cli.bench.load import measure_load
from atom_server.cli.bench.load_flags import add_load_flags

USAGE = "serve [--base-url URL] [flags]"
DESCRIPTION = """\
Send random prompts, or those of a dataset, to a running server, at a rate or with so many requests at once, and print
throughput and latencies. Flags and the keys of the result are those of the serving benchmarks of vLLM and ROCm/ATOM.
Charts and reports need matplotlib."""
EXAMPLES = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to send, how fast, and what to keep."""
    add_load_flags(parser)
    kept = parser.add_argument_group("files")
    kept.add_argument("--save-result", action="store_true", help="write the result as JSON")
    kept.add_argument("--save-detailed", action="store_true", help="the same, with each request by itself")
    kept.add_argument("--result-dir", type=Path, default=Path("."), help="where results go (default: here)")
    kept.add_argument("--result-filename", help="default: by rate, model and time")
    kept.add_argument("--plot", type=Path, metavar="FILE", help="draw a chart into a .png, .svg or .pdf")
    kept.add_argument("--report", type=Path, metavar="FILE", help="write a page of figures and charts, an .html")


def run(args: argparse.Namespace) -> int:
    """Measure, print, save, draw; 1 where requests failed."""
    if args.plot is not None:
        check_chart(args.plot)
    if args.report is not None:
        check_report(args.report)
    measured = event_loop.run(measure_load(args))
    result = measured.result
    print(table(result, args.percentile_metrics, args.metric_percentiles))
    if args.save_result or args.save_detailed:
        _save(args, result | (details(measured.outcomes) if args.save_detailed else {}))
    if args.plot is not None:
        draw_run(args.plot, measured.outcomes, measured.seconds, result)
        print(f"drawn: {args.plot}")
    if args.report is not None:
        write_report(args.report, measured.outcomes, measured.seconds, result)
        print(f"written: {args.report}")
    for error in result["errors"]:
        print(f"failed: {error}")
    return 1 if result["failed"] else 0


def _save(args: argparse.Namespace, result: dict[str, Any]) -> None:
    model = result["model_id"].rsplit("/", 1)[-1]
    name = args.result_filename or f"{args.backend}-{args.request_rate:g}qps-{model}-{result['date']}.json"
    path = save_json(args.result_dir / name, result)
    print(f"written: {path}")
    if settings.save_to_pytorch_benchmark_format():
        flags = {name: value for name, value in vars(args).items() if isinstance(value, str | int | float | bool)}
        flags.pop("api_key", None)
        records = save_json(path.with_suffix(".pytorch.json"), pytorch_records(result, flags))
        print(f"written: {records}")
