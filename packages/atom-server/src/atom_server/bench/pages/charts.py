"""Charts of load: latencies and their percentiles over a run, and runs beside each other. They need matplotlib."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from atom_server.bench.metrics import TITLES, arrivals, percentile, samples_of
from atom_server.bench.outcome import BenchError, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf")
MARKED = (50, 90, 99)
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_NUM_BINS = 40


def check_chart(path: Path) -> None:
    """Find out before a long run whether its chart can be drawn.

    Raises:
        BenchError: it cannot.
    """
    if path.suffix not in ENDINGS:
        raise BenchError(f"--plot {path}: a chart ends with {', '.join(ENDINGS)}")
    check_drawing()


def check_drawing() -> None:
    """Raise BenchError where nothing can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise BenchError("charts need matplotlib: pip install matplotlib") from None


def draw_run(target: Path | TextIO, outcomes: Sequence[Outcome], seconds: float, about: Mapping[str, Any]) -> None:
    """One run: the distribution of each latency with its percentiles marked, and how much was going on when.

    Args:
        target: a file by its ending, or a text that gets an SVG.
        seconds: that the run took.
        about: its result, whose rates make the title.
    """
    done = [outcome for outcome in outcomes if not outcome.error]
    figure = _figure(
        f"{about['model_id']}: {about['output_throughput']:.0f} output tokens/s, {len(done)} requests", 7.5
    )
    grid = figure.add_gridspec(3, 2)
    for number, (name, values) in enumerate(samples_of(done).items()):
        _draw_distribution(figure.add_subplot(grid[number // 2, number % 2]), TITLES[name], values)
    _draw_course(figure.add_subplot(grid[2, :]), done, seconds)
    figure.savefig(target, format=None if isinstance(target, Path) else "svg")


def draw_runs(path: Path, results: Sequence[Mapping[str, Any]], *, at_knee: int | None = None) -> None:
    """Saved runs: each latency's median and highest percentile against throughput, a line for each model.

    Args:
        at_knee: which of the results is marked as the knee of their curve.

    Raises:
        BenchError: a result is none of `atom bench serve`, or there is none.
    """
    if not results:
        raise BenchError("name the results to draw: atom bench plot RESULT.json ...")
    figure = _figure("Latency against throughput", 3.8)
    for number, name in enumerate(("ttft", "tpot")):
        axes = figure.add_subplot(1, 2, number + 1)
        axes.set(title=TITLES[name], xlabel="output tokens/s", ylabel="ms")
        for color, (model, runs) in zip(itertools.cycle(_COLORS), _by_model(results).items(), strict=False):
            _draw_line(axes, name, model, runs, color)
        if at_knee is not None:
            place = (results[at_knee]["output_throughput"], results[at_knee][f"median_{name}_ms"])
            axes.plot(*place, "o", markersize=12, fillstyle="none", color="black", label="knee")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=7)
    figure.savefig(path)


def _figure(title: str, height: float) -> Figure:
    # Not pyplot, which keeps every figure and looks for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, height), layout="constrained")
    figure.suptitle(title)
    return figure


def _draw_distribution(axes: Axes, title: str, values: Sequence[float]) -> None:
    ordered = sorted(values) or [0.0]
    axes.step(
        ordered, [100 * (place + 1) / len(ordered) for place in range(len(ordered))], color=_COLORS[0], where="post"
    )
    for share, color in zip(MARKED, _COLORS[1:], strict=False):
        value = percentile(ordered, share)
        axes.axvline(value, color=color, linestyle="--", linewidth=1, label=f"p{share} {value:.4g} ms")
    axes.set(title=title, xlabel="ms", ylabel="% at most", ylim=(0, 101))
    axes.legend(fontsize=7, loc="lower right")


def _draw_course(axes: Axes, done: Sequence[Outcome], seconds: float) -> None:
    """Tokens a second in steps, and how many requests ran."""
    width = max(seconds, 1e-9) / _NUM_BINS
    rates, running = [0.0] * _NUM_BINS, [0] * _NUM_BINS
    for outcome in done:
        for moment, count in arrivals(outcome):
            rates[min(_NUM_BINS - 1, int(moment / width))] += count / width
        first, last = int(outcome.sent / width), int((outcome.sent + outcome.latency) / width)
        for place in range(first, min(_NUM_BINS - 1, last) + 1):
            running[place] += 1
    middles = [(place + 0.5) * width for place in range(_NUM_BINS)]
    axes.bar(middles, rates, width=width, color=_COLORS[5])
    axes.set(title="course of the run", xlabel="s", ylabel="output tokens/s")
    other = axes.twinx()
    other.plot(middles, running, color=_COLORS[1])
    other.set_ylabel("requests running", color=_COLORS[1])
    other.set_ylim(bottom=0)


def _draw_line(axes: Axes, name: str, model: str, runs: Sequence[Mapping[str, Any]], color: str) -> None:
    rates = [run["output_throughput"] for run in runs]
    for key, style in ((f"median_{name}_ms", "-"), (_highest(runs, name), "--")):
        axes.plot(
            rates, [run[key] for run in runs], style, color=color, marker="o", label=f"{model}, {key.partition('_')[0]}"
        )
    for run in runs:
        limit = run.get("max_concurrency") or run.get("request_rate")
        axes.annotate(
            f"{limit}",
            (run["output_throughput"], run[f"median_{name}_ms"]),
            fontsize=6,
            xytext=(2, 3),
            textcoords="offset points",
        )


def _highest(runs: Sequence[Mapping[str, Any]], name: str) -> str:
    """The highest percentile that all runs have."""
    keys = set.intersection(
        *({key for key in run if key.startswith("p") and key.endswith(f"_{name}_ms")} for run in runs)
    )
    return max(keys, key=lambda key: float(key[1:].partition("_")[0]), default=f"mean_{name}_ms")


def _by_model(results: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    models: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        if not isinstance(result, dict) or "output_throughput" not in result:
            raise BenchError("a file is no result of atom bench serve --save-result")
        models.setdefault(str(result.get("model_id")), []).append(result)
    return {model: sorted(runs, key=lambda run: run["output_throughput"]) for model, runs in models.items()}
