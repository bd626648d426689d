"""Pictures of the figures: ours beside the peer's, with a mark at the floor."""

from __future__ import annotations

from typing import Any

Result = dict[str, Any]
# Kinds of figures that are drawn, and what is said over them.
PICTURES = {
    "decode": "Time of a decode step, shorter is better",
    "prefill": "Time of a prompt and its first token, shorter is better",
    "offline": "Tokens in a second, longer is better",
}
NAMES = {"atom": "ATOM", "vllm": "vLLM"}
BAR, GAP, LEFT, FULL, WIDTH, TOP = 15, 10, 200, 420, 800, 66


def pictures(document: dict[str, Any]) -> dict[str, str]:
    """By their file names, an SVG for each kind of figure that was measured."""
    versions = {name: engine["version"] for result in document["results"] for name, engine in result["engines"].items()}
    note = ", ".join(f"{NAMES[name]} {version}" for name, version in sorted(versions.items()))
    note = f"{document['machine']['device']}, {note}; dashed: what its bandwidth and arithmetic allow"
    found = {}
    for kind, title in PICTURES.items():
        if drawn := [result for result in document["results"] if _is_drawn(result, kind)]:
            found[f"gpu-{kind}.svg"] = draw(drawn, title, note)
    return found


def draw(results: list[Result], title: str, note: str) -> str:
    """Bars in groups, one for each figure under the name of its model; each group has a scale of its own."""
    parts: list[str] = []
    top, model = TOP, None
    for result in results:
        if result["model"] != model:
            model = result["model"]
            parts.append(f'<text class="head" x="16" y="{top + BAR}">{model}</text>')
            top += BAR + GAP
        parts += _group(result, top)
        top += len(_medians(result)) * (BAR + 3) + GAP
    return _SVG.format(width=WIDTH, height=top + GAP, title=title, note=note, body="\n".join(parts))


def _is_drawn(result: Result, kind: str) -> bool:
    about = result["about"]
    return about.get("kind") == kind and "with" not in about and bool(_medians(result))


def _medians(result: Result) -> dict[str, float]:
    """By engine, ours first."""
    engines = sorted(result["engines"].items())
    return {name: engine["median"] for name, engine in engines if "median" in engine}


def _group(result: Result, top: float) -> list[str]:
    medians, floor = _medians(result), result.get("floor")
    scale = FULL / max(*medians.values(), floor or 0.0)
    height = len(medians) * (BAR + 3)
    parts = [f'<text x="28" y="{top + BAR - 3}">{_label(result)}</text>']
    for index, (name, median) in enumerate(medians.items()):
        at, width = top + index * (BAR + 3), median * scale
        value = f"{NAMES[name]} {median:.{0 if median >= 1000 else 2}f} {result['unit']}"
        parts.append(f'<rect class="{name}" x="{LEFT}" y="{at}" width="{width:.1f}" height="{BAR}" rx="2"/>')
        parts.append(f'<text x="{LEFT + FULL + 12}" y="{at + BAR - 3}">{value}</text>')
    if floor is not None:
        x = LEFT + floor * scale
        parts.append(f'<line class="floor" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 3}" y2="{top + height}"/>')
    return parts


def _label(result: Result) -> str:
    about = result["about"]
    if about["kind"] == "decode":
        return f"batch {about['batch']}, context {about['context']}"
    return f"{about['tokens']} tokens" if about["kind"] == "prefill" else result["figure"].partition(", ")[2]


_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
role="img" aria-label="{title}">
<style>
text {{ font: 12px system-ui, sans-serif; fill: #495057 }} .head {{ font-weight: 600 }}
.title {{ font-size: 15px; font-weight: 600 }} .back {{ fill: #ffffff }}
.atom {{ fill: #d9480f }} .vllm {{ fill: #868e96 }}
.floor {{ stroke: #1971c2; stroke-width: 2; stroke-dasharray: 4 3 }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #ced4da }} .back {{ fill: #16191d }} .atom {{ fill: #f76707 }} .floor {{ stroke: #4dabf7 }}
}}
</style>
<rect class="back" width="100%" height="100%" rx="8"/>
<text class="title" x="16" y="26">{title}</text>
<text x="16" y="46">{note}</text>
{body}
</svg>
"""
