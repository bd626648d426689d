"""`atom trace`: what a profiler trace says of each module of a model."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from atom_server.bench.origin import origin
from atom_server.bench.pages.charts import check_chart
from atom_server.bench.saved_results import save_json
from atom_server.cli.columns import columns
from atom_server.traces import Breakdown, TraceError, break_down, find_roofline, read_events, read_trace
from atom_server.traces.picture import draw_breakdowns
from atom_server.traces.work import captured_graphs, steps_of
from atom_server.traces.workbook import check_workbooks, write_workbook

HELP = "break a profiler trace down by modules"
USAGE = "FILE [--layer N] [flags]"
DESCRIPTION = """\
Read a trace of a CPU, CUDA or ROCm device that was recorded with --mark-trace, and write what one layer spends in each
module and kernel into prefill_breakdown.xlsx and decode_breakdown.xlsx, beside the mean over all layers. Where the
rates of the device are known, the least time of a module's matrices is shown as a share of the time that it took."""
EXAMPLES = """\
examples:
  atom profile --model smollm2 --mark-trace
  atom trace ./profiler_traces/rank_0/smollm2_ts_*.json.gz --layer 3
  atom trace trace.json.gz --capture-trace capture.json.gz --plot breakdown.png
"""
PHASES = ("prefill", "decode")
_MOST_ROWS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The trace, the layer, and what is written where."""
    parser.add_argument("file", type=Path, metavar="FILE", help="trace, .json or .json.gz")
    parser.add_argument("--layer", type=int, default=3, help="from 0 (default: %(default)s)")
    parser.add_argument(
        "--capture-trace",
        type=Path,
        metavar="FILE",
        help="trace of the captures, which tells modules of graphs (default: capture_ts_* beside FILE)",
    )
    parser.add_argument(
        "--on", metavar="DEVICE", help="whose rates say what is least, such as MI300X (default: the trace's own)"
    )
    parser.add_argument("--output-dir", type=Path, default=Path("."), metavar="DIR", help="default: the current one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the breakdowns there, too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the modules into a .png, .svg or .pdf")


def run(args: argparse.Namespace) -> int:
    """Read, print, write."""
    check_workbooks()
    if args.plot is not None:
        check_chart(args.plot)
    trace = read_trace(args.file)
    events, roofline = trace.events, find_roofline(args.on, trace.devices, trace.matrices)
    graphs = captured_graphs(events)
    for path in _capture_traces(args):
        graphs |= captured_graphs(read_events(path))
    steps = steps_of(events, graphs)
    if not steps:
        raise TraceError(f"{args.file} has no step of the engine: record it with --mark-trace")
    has = {step.kind for step in steps}
    phases = [phase for phase in PHASES if phase in has or (phase == "prefill" and "mixed" in has)]
    found = [break_down(steps, phase, args.layer, roofline) for phase in phases]
    args.output_dir.mkdir(parents=True, exist_ok=True)
    for breakdown in found:
        print("\n".join(_summary(breakdown)))
        path = args.output_dir / f"{breakdown.phase}_breakdown.xlsx"
        write_workbook(path, breakdown)
        print(f"written: {path}\n")
    if args.json is not None:
        about = {"benchmark": "trace", "trace": args.file.name, "devices": trace.devices, "machine": origin()}
        print(f"written: {save_json(args.json, about | {'phases': [asdict(each) for each in found]})}")
    if args.plot is not None:
        draw_breakdowns(args.plot, found)
        print(f"drawn: {args.plot}")
    return 0


def _capture_traces(args: argparse.Namespace) -> list[Path]:
    if args.capture_trace is not None:
        return [args.capture_trace]
    return sorted(args.file.parent.glob("capture_ts_*.json.gz"))


def _summary(found: Breakdown) -> list[str]:
    rows = [
        (
            "module",
            "kernel",
            "us",
            "share",
            f"mean of {max(row.num_layers for row in found.rows)} layers",
            "of roofline",
        )
    ]
    rows += [
        (
            *(
                row.module,
                row.kernel[:64],
                f"{row.microseconds:.1f}",
                f"{row.share:.1%}",
                f"{row.mean_microseconds:.1f}",
            ),
            "" if row.roofline is None else f"{row.roofline:.0%}",
        )
        for row in found.rows[:_MOST_ROWS]
    ]
    more = len(found.rows) - _MOST_ROWS
    return [
        f"{found.phase}: a step of {found.step_microseconds / 1e3:.3f} ms, the middle one of {found.num_steps}; "
        f"{found.attributed:.1%} of it in modules; layer {found.layer} takes {found.layer_microseconds:.1f} us",
        *columns(rows),
        *([f"and {more} kernels more"] if more > 0 else []),
    ]
