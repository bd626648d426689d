"""The kernels' page of the docs: a chart of the work that counts most, and a table of every case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.kernels.table import conditions, kernels_table
from benchmarks.report import fill_marks

# What a step of 32 requests and a long prompt mostly consist of: operator and how the case begins.
CHARTED = (
    ("attention", "decode 32 x 1k"),
    ("latent_attention", "decode 32 x 1k"),
    ("moe_experts", "rows 32"),
    ("linear", "norm, gate_up_proj, silu, rows 32"),
    ("linear", "lm_head, rows 32"),
    ("attention", "prompt of 8k"),
    ("latent_attention", "prompt of 8k"),
    ("moe_experts", "rows 2048"),
    ("linear", "norm, gate_up_proj, silu, rows 2048"),
)
PICTURE = "images/gpu-kernels.svg"
BAR, GAP, LEFT, FULL, WIDTH, TOP = 16, 14, 330, 300, 860, 66
# Where labels begin: behind bars a little longer than what a copy allows, as reading alone may be.
LABELS = LEFT + 1.08 * FULL


def with_tables(text: str, documents: list[dict[str, Any]]) -> str:
    """The page with what lies between its marks replaced by the tables of the results.

    Raises:
        ValueError: the page lacks the marks.
    """
    return fill_marks(text, [f"![Share of the GPU's best]({PICTURE})", *map(kernels_table, documents)])


def page(documents: list[dict[str, Any]], path: Path, images: Path) -> dict[Path, str]:
    """The page with the tables of all results, and the picture of the first."""
    return {images / Path(PICTURE).name: draw(documents[0]), path: with_tables(path.read_text(), documents)}


def charted(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The results of `CHARTED` by model, in that order."""
    models: dict[str, list[dict[str, Any]]] = {}
    for operator, part in CHARTED:
        for result in document["results"]:
            matches = result["operator"] == operator and _matches(result["case"], part)
            if matches and "failure" not in result:
                models.setdefault(result["model"], []).append(result)
    return {model: models[model] for model in dict.fromkeys(r["model"] for r in document["results"]) if model in models}


def draw(document: dict[str, Any]) -> str:
    """An SVG of bars: the share of the GPU's own best, whichever of copying and multiplying is nearer to it."""
    parts: list[str] = []
    top = TOP
    for model, results in charted(document).items():
        parts.append(f'<text class="model" x="16" y="{top + BAR - 4}">{model}</text>')
        top += BAR + 6
        for result in results:
            parts += _bar(result, top)
            top += BAR + 5
        top += GAP
    right = LEFT + FULL
    parts.append(f'<line class="best" x1="{right}" x2="{right}" y1="{TOP}" y2="{top - GAP}"/>')
    note = conditions(document).split(";")[0].removesuffix(" in the same run")
    return _SVG.format(width=WIDTH, height=top, body="\n".join(parts), note=note)


def _matches(case: str, part: str) -> bool:
    return case == part or case.endswith(f", {part}")


def _bar(result: dict[str, Any], top: float) -> list[str]:
    by_copy = result["copy_share"] >= result["matmul_share"]
    share = result["copy_share"] if by_copy else result["matmul_share"]
    width, kind = share * FULL, "copy" if by_copy else "matmul"
    label = f"{share:.0%} of {kind} rate, {result['us']:.0f} us"
    return [
        f'<text x="28" y="{top + BAR - 4}">{result["operator"]}: {result["case"]}</text>',
        f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" rx="2"/>',
        f'<text x="{LABELS:.1f}" y="{top + BAR - 4}">{label}</text>',
    ]


_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
role="img" aria-label="Share of the GPU's best that kernels reach, longer is better">
<style>
text {{ font: 12px system-ui, sans-serif; fill: #495057 }} .model {{ font-weight: 600 }}
.title {{ font-size: 15px; font-weight: 600 }}
.copy {{ fill: #d9480f }} .matmul {{ fill: #1971c2 }} .best {{ stroke: #212529; stroke-dasharray: 4 3 }}
.back {{ fill: #ffffff }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #ced4da }} .back {{ fill: #16191d }} .copy {{ fill: #f76707 }} .matmul {{ fill: #4dabf7 }}
.best {{ stroke: #ced4da }}
}}
</style>
<rect class="back" width="100%" height="100%" rx="8"/>
<text class="title" x="16" y="26">Share of the GPU's best, longer is better</text>
<text x="16" y="46">{note}; dashed: that rate</text>
{body}
</svg>
"""
