"""Draw the saved results as SVG into docs/images, and put their tables into README.md and the pages of docs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.gpu import page as gpu_page
from benchmarks.gpu.headlines import headlines
from benchmarks.gpu.tables import gpu_table
from benchmarks.kernels import page as kernels_page

ROOT = Path(__file__).parent.parent
COLORS = {"atom": "#d9480f", "transformers": "#868e96"}
BAR, GAP, LEFT, WIDTH, TOP = 22, 24, 240, 800, 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `python -m benchmarks chart`."""
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder of JSON results")
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images", help="folder to draw into")
    parser.add_argument(
        "--kernels", type=Path, default=ROOT / "docs" / "gpu-kernels.md", help="page of the kernels, likewise"
    )
    parser.add_argument("--gpu", type=Path, default=ROOT / "docs" / "gpu.md", help="page of engines on GPUs, likewise")
    parser.add_argument("--vllm", type=Path, default=ROOT / "docs" / "vllm.md", help="page of the plugin, likewise")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", help="file whose measured part is replaced")


def run(options: argparse.Namespace) -> int:
    """Draw every result and update the pages that show them."""
    documents = report.load_all("offline", options.results)
    if not documents:
        print(f"No results in {options.results}: run `python -m benchmarks offline --vs transformers` first.")
        return 1
    options.images.mkdir(parents=True, exist_ok=True)
    (options.images / "offline.svg").write_text(draw(documents[0]))
    overhead = report.load_all("overhead", options.results)
    blocks = report.load_all("blocks", options.results)
    http = report.load_all("http", options.results)
    busy = report.load_all("busy", options.results)
    options.readme.write_text(with_tables(options.readme.read_text(), documents, overhead, blocks, http, busy))
    print(f"drawn: {options.images / 'offline.svg'}; tables: {options.readme}")
    if kernels := report.load_all("kernels", options.results):
        kernels_page.write_page(kernels, options.kernels, options.images)
        print(f"drawn: {options.images / 'gpu-kernels.svg'}; tables: {options.kernels}")
    if engines := report.load_all("gpu", options.results):
        gpu_page.write_page(engines[0], kernels, options.gpu, options.images)
        options.readme.write_text(report.fill_marks(options.readme.read_text(), [headlines(engines[0])], "gpu"))
        print(f"drawn: {options.images}/gpu-*.svg; tables: {options.gpu}")
    if plugin := report.load_all("vllm", options.results):
        tables = [report.vllm_table(document) for document in plugin]
        text = report.fill_marks(options.vllm.read_text(), tables)
        on_gpu = [gpu_table(document) for document in report.load_all("gpu-in-vllm", options.results)]
        options.vllm.write_text(report.fill_marks(text, on_gpu, "gpu"))
        print(f"tables: {options.vllm}")
    return 0


def with_tables(
    text: str,
    offline: list[dict[str, Any]],
    overhead: list[dict[str, Any]],
    blocks: list[dict[str, Any]] | None = None,
    http: list[dict[str, Any]] | None = None,
    busy: list[dict[str, Any]] | None = None,
) -> str:
    """The README with the tables of the results between its marks."""
    tables = [report.offline_table(document) for document in offline]
    tables += [
        "What the engine itself adds to a step (a runner that returns ready logits of 49152 tokens):\n\n"
        + report.overhead_table(document)
        for document in overhead
    ]
    tables += [
        "Streams over HTTP, read by a client in its own process, beside the engine called in Python (less than nothing "
        "where the process of the server takes work off the engine's):\n\n" + report.http_table(document)
        for document in http or ()
    ]
    tables += [
        "Mixtures of experts and latent attention, in random models of a few hundred million parameters:\n\n"
        + report.blocks_table(document)
        for document in blocks or ()
    ]
    tables += [
        "A decoded token on two cores that busy loops want, too (batch 1; the mean of a turn):\n\n"
        + report.busy_table(document)
        for document in busy or ()
    ]
    return report.fill_marks(text, tables)


def draw(document: dict[str, Any]) -> str:
    """An SVG of bars, one group a scenario: the median, a line over the quartiles, a mark at the roofline."""
    parts: list[str] = []
    top = TOP
    for result in document["results"]:
        longest = max(engine["quartiles_ms"][1] for engine in result["engines"].values())
        scale = (WIDTH - LEFT - 180) / longest
        parts.append(f'<text class="step" x="16" y="{top + BAR - 6}">{result["scenario"]}</text>')
        for name, engine in result["engines"].items():
            parts += _bar(name, engine, top, scale)
            top += BAR + 6
        x = LEFT + result["roofline_ms"] * scale
        height = len(result["engines"]) * (BAR + 6) - 6
        parts.append(f'<line class="roof" x1="{x:.1f}" x2="{x:.1f}" y1="{top - height - 9}" y2="{top - 3}"/>')
        top += GAP
    machine = document["machine"]
    note = f"{machine['cpu']}, {document['settings']['threads']} threads, {document['settings']['dtype']}"
    return _SVG.format(width=WIDTH, height=top, body="\n".join(parts), model=document["settings"]["model"], note=note)


def _bar(name: str, engine: dict[str, Any], top: float, scale: float) -> list[str]:
    width, middle = engine["median_ms"] * scale, top + BAR / 2
    low, high = (LEFT + value * scale for value in engine["quartiles_ms"])
    label = f"{name} {engine['median_ms']:.1f} ms"
    return [
        f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" rx="3" fill="{COLORS.get(name, "#1971c2")}"/>',
        f'<line class="spread" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
        f'<text x="{max(high, LEFT + width) + 8:.1f}" y="{top + BAR - 6}">{label}</text>',
    ]


_SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
role="img" aria-label="Milliseconds of a step, shorter is better">
<style>
text {{ font: 13px system-ui, sans-serif; fill: #495057 }} .step {{ font-weight: 600 }}
.title {{ font-size: 15px; font-weight: 600 }}
.spread {{ stroke: #212529; stroke-width: 1.5 }} .roof {{ stroke: #1971c2; stroke-width: 2; stroke-dasharray: 4 3 }}
</style>
<rect width="100%" height="100%" fill="#ffffff" rx="8"/>
<text class="title" x="16" y="26">{model}: time of one step, shorter is better</text>
<text x="16" y="46">{note}; dashed: the least this machine's bandwidth and arithmetic allow</text>
{body}
</svg>
"""
