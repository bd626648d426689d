"""A page of one run: its figures and its charts, in one file that needs nothing else."""

from __future__ import annotations

import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atom_server.bench.metrics import TITLES, percentile, samples_of
from atom_server.bench.outcome import BenchError, Outcome
from atom_server.bench.pages.charts import MARKED, check_drawing, draw_run
from atom_server.bench.pages.page import page, section, table

_FACTS = (
    ("date", "date"), ("backend", "backend"), ("model_id", "model"), ("num_prompts", "prompts"),
    ("request_rate", "requests a second asked for"), ("max_concurrency", "requests at once, at most"),
    ("duration", "seconds"), ("completed", "completed"), ("failed", "failed"),
    ("total_input_tokens", "input tokens"), ("total_output_tokens", "output tokens"),
    ("request_throughput", "requests a second"), ("request_goodput", "of them within the limits"),
    ("output_throughput", "output tokens a second"), ("total_token_throughput", "tokens a second in all"),
    ("max_concurrent_requests", "requests at once"),
)  # fmt: skip


def check_report(path: Path) -> None:
    """Find out before a long run whether its report can be written.

    Raises:
        BenchError: it cannot.
    """
    if path.suffix != ".html":
        raise BenchError(f"--report {path}: a report ends with .html")
    check_drawing()


def write_report(path: Path, outcomes: Sequence[Outcome], seconds: float, result: Mapping[str, Any]) -> None:
    """The page of a run; `seconds` and `result` are as for `draw_run`."""
    chart = io.StringIO()
    draw_run(chart, outcomes, seconds, result)
    picture = chart.getvalue()
    done = [outcome for outcome in outcomes if not outcome.error]
    facts = [(title, _number(result[name])) for name, title in _FACTS if result.get(name) is not None]
    spreads = [_spread(TITLES[name], values) for name, values in samples_of(done).items()]
    head = ("", "mean ms", *(f"p{share}" for share in MARKED), "most")
    errors = [f'<p class="bad">{html.escape(error)}</p>' for error in result["errors"]]
    text = page(
        f"{result['model_id']} on {result['backend']}",
        *errors,
        section("Run", table(facts)),
        section("Latencies", table(spreads, head)),
        section("Charts", picture[picture.index("<svg") :]),
    )
    path.write_text(text, encoding="utf-8")


def _spread(title: str, values: Sequence[float]) -> tuple[str, ...]:
    if not values:
        return (title, *["none"] * (len(MARKED) + 2))
    ordered = sorted(values)
    shown = (sum(values) / len(values), *(percentile(ordered, share) for share in MARKED), ordered[-1])
    return (title, *map(_number, shown))


def _number(value: Any) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
