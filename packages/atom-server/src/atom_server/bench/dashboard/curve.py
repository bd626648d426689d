"""A chart of lines as SVG, drawn without a library: the dashboard is to be made wherever results are."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 760, 360, 70, 50, 20
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_NUM_TICKS = 5

Point = tuple[float, float, str]
"""(x, y, what is shown when one points at it)."""


def curve(lines: Mapping[str, Sequence[Point]], *, x_title: str, y_title: str) -> str:
    """A line with dots for each name, over axes that begin at 0."""
    points = [point for line in lines.values() for point in line]
    most_x = max((x for x, _, _ in points), default=0.0) * 1.05 or 1.0
    most_y = max((y for _, y, _ in points), default=0.0) * 1.05 or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        right, up = (_WIDTH - _LEFT - 10) * x / most_x, (_HEIGHT - _BOTTOM - _TOP) * y / most_y
        return _LEFT + right, _HEIGHT - _BOTTOM - up

    parts = [_axes(most_x, most_y, x_title, y_title)]
    for number, (color, (name, line)) in enumerate(zip(itertools.cycle(_COLORS), lines.items(), strict=False)):
        places = [place(x, y) for x, y, _ in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for (x, y), (_, _, said) in zip(places, line, strict=True):
            title = f"<title>{html.escape(said)}</title>"
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}">{title}</circle>')
        label_y = _TOP + 16 * number
        parts.append(f'<text x="{_LEFT + 10}" y="{label_y}" fill="{color}">{html.escape(name)}</text>')
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-size="12" role="img">{"".join(parts)}</svg>'


def _axes(most_x: float, most_y: float, x_title: str, y_title: str) -> str:
    floor = _HEIGHT - _BOTTOM
    parts = [f'<path d="M{_LEFT},{_TOP}V{floor}H{_WIDTH - 10}" fill="none" stroke="#888"/>']
    for value in _ticks(most_x):
        x = _LEFT + (_WIDTH - _LEFT - 10) * value / most_x
        parts.append(f'<text x="{x:.0f}" y="{floor + 16}" text-anchor="middle">{value:,.6g}</text>')
    for value in _ticks(most_y):
        y = floor - (floor - _TOP) * value / most_y
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{value:,.6g}</text>')
    middle = (_TOP + floor) / 2
    parts.append(f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 10}" text-anchor="middle">{html.escape(x_title)}</text>')
    turned = f'x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 {middle})"'
    return "".join([*parts, f"<text {turned}>{html.escape(y_title)}</text>"])


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 on: the last one lies below `most` by enough for its label to fit."""
    about = most / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(about))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= about)
    return [place * step for place in range(int(most * 0.97 / step) + 1)]
