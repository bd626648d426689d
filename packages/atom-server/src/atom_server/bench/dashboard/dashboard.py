"""The page: throughput against latency, trends with regressions marked, accuracy beside speed, and the files."""

from __future__ import annotations

import base64
import html
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from atom_server.bench.dashboard.curve import Point, curve
from atom_server.bench.dashboard.runs import AccuracyReading, Run, TaskScore, read_results
from atom_server.bench.dashboard.trends import Change, trends
from atom_server.bench.pages.page import Marked, page, section, table

_TREND_HEAD = ("load", "date", "commit", "output tokens/s", "", "first token ms", "", "per token ms", "")


def write_dashboard(output: Path, results: Sequence[Path], traces: Sequence[Path] = ()) -> list[Change]:
    """Write the page; the runs that became worse than the ones before them.

    Args:
        traces: files that the page links to.

    Raises:
        BenchError: a file is no result.
    """
    read = read_results(results)
    runs, found = read.runs, trends(read.runs)
    worse = [change for changes in found.values() for change in changes if change.regressions]
    parts = [_regressions(worse)] if runs else []
    if runs:
        parts += [section("Throughput against latency", *_curves(runs)), section("Trends", *_trends(found))]
    tables = [_accuracy(read.readings)] if read.readings else []
    tables += [_task_scores(read.scores)] if read.scores else []
    if tables:
        parts.append(section("Accuracy", *tables))
    parts.append(section("Files", _files(results, traces, output.parent)))
    output.write_text(page("ATOM: measurements", *parts), encoding="utf-8")
    return worse


def _regressions(worse: Sequence[Change]) -> str:
    if not worse:
        return '<p class="good">No run is 5 % below in throughput, or 10 % above in latency, of the one before.</p>'
    names = "; ".join(f"{', '.join(change.regressions)} of {' · '.join(change.run.subject)}" for change in worse)
    return f'<p class="bad">{len(worse)} regressions: {html.escape(names)}</p>'


def _curves(runs: Sequence[Run]) -> list[str]:
    """One chart for each latency; a line for each file of a model, in order of throughput."""
    charts = []
    for name, title in (("tpot", "time per output token, median ms"), ("ttft", "time to first token, median ms")):
        lines: defaultdict[str, list[Point]] = defaultdict(list)
        for run in sorted(runs, key=lambda run: run.throughput):
            label = f"{run.model}, {run.place}" + (f", {run.commit}" if run.commit else "")
            value = getattr(run, name)
            lines[label].append((run.throughput, value, f"{run.load}: {run.throughput:.0f} tokens/s, {value:.2f} ms"))
        charts.append(curve(lines, x_title="output tokens/s", y_title=title))
    return charts


def _trends(found: dict[tuple[str, str, str], list[Change]]) -> list[str]:
    tables: defaultdict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(list)
    for (model, place, load), changes in found.items():
        tables[model, place] += [_trend_row(load, change) for change in changes]
    return [
        f"<h3>{html.escape(f'{model} on {place}')}</h3>" + table(rows, _TREND_HEAD)
        for (model, place), rows in tables.items()
    ]


def _trend_row(load: str, change: Change) -> tuple[str, ...]:
    run, worse = change.run, change.regressions
    date = f"{run.moment[:4]}-{run.moment[4:6]}-{run.moment[6:8]} {run.moment[8:10]}:{run.moment[10:12]}"
    cells = [load, date, run.commit]
    for name, text in (
        ("throughput", f"{run.throughput:,.0f}"),
        ("ttft", f"{run.ttft:.1f}"),
        ("tpot", f"{run.tpot:.2f}"),
    ):
        share = getattr(change, name)
        said = "" if share is None else f"{share:+.1%}"
        cells += [text, Marked(said, "bad") if name in worse else said]
    return tuple(cells)


def _accuracy(readings: Sequence[AccuracyReading]) -> str:
    head = ("model", "weights", "KV cache", "perplexity", "change", "file")
    rows = [
        (
            *(each.model, each.weights, each.kv_cache, f"{each.perplexity:.3f}"),
            "" if each.change is None else f"{each.change:+.2%}",
            each.file,
        )
        for each in readings
    ]
    return table(rows, head)


def _task_scores(scores: Sequence[TaskScore]) -> str:
    head = ("model", "weights", "task", "metric", "value", "stderr", "commit", "file")
    rows = [
        (
            *(each.model, each.weights, each.task, each.metric, f"{each.value:.4f}"),
            *("" if each.stderr is None else f"{each.stderr:.4f}", each.commit, each.file),
        )
        for each in scores
    ]
    return table(rows, head)


def _files(results: Sequence[Path], traces: Sequence[Path], folder: Path) -> str:
    """Results lie within the page, so that it can be moved alone; traces are large, and are linked to."""
    links = []
    for path in results:
        data = base64.b64encode(path.read_bytes()).decode()
        name = html.escape(path.name, quote=True)
        links.append(f'<li><a download="{name}" href="data:application/json;base64,{data}">{name}</a></li>')
    for path in traces:
        target = html.escape(os.path.relpath(path, folder or Path()), quote=True)
        links.append(f'<li><a download href="{target}">{html.escape(path.name)}</a> (trace)</li>')
    return f"<ul>{''.join(links)}</ul>"
