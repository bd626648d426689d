"""Draw the saved results as SVG into docs/images, and put their tables into README.md and the pages of docs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import report, tables
from benchmarks.gpu import page as gpu_page
from benchmarks.gpu.gains import gains_table
from benchmarks.gpu.headlines import headlines
from benchmarks.gpu.hosts import with_quick_host
from benchmarks.gpu.served.table import served_table
from benchmarks.gpu.tables import aims_table, gpu_table
from benchmarks.kernels import page as kernels_page
from benchmarks.kernels.untuned import untuned_table

ROOT = Path(__file__).parent.parent
BENCHMARKS = (
    *("offline", "overhead", "http", "blocks", "busy", "kernels", "untuned", "gpu", "gpu-quick-host", "gpu-in-vllm"),
    *("served", "vllm", "masks", "mask-steps", "speculation", "gpu-speculation", "gpu-served", "acceptance"),
)
# What stands above each table of the README.
README_TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "overhead": (
        "What the engine itself adds to a step (a runner that returns ready logits of 49152 tokens)",
        tables.overhead_table,
    ),
    "http": (
        "Streams over HTTP, read by a client in its own process, beside the engine called in Python (less than nothing "
        "where the process of the server takes work off the engine's)",
        tables.http_table,
    ),
    "blocks": (
        "Mixtures of experts and latent attention, in random models of a few hundred million parameters (in float32 a "
        "prompt of latent attention takes the same sums as a single token, so that no bit depends on how it is cut; "
        "expanding it, as in bfloat16, would be quicker)",
        tables.blocks_table,
    ),
    "busy": ("A decoded token on two cores that busy loops want, too (batch 1)", tables.busy_table),
}
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
    parser.add_argument(
        "--structured-output", type=Path, default=ROOT / "docs" / "structured-output.md", help="page of masks, likewise"
    )
    parser.add_argument(
        "--speculation", type=Path, default=ROOT / "docs" / "speculation.md", help="page of speculation, likewise"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is out of date")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", help="file whose measured part is replaced")


def run(options: argparse.Namespace) -> int:
    """Draw every result and update the pages that show them; with `--check`, say which are out of date."""
    if not report.load_all("offline", options.results):
        print(f"No results in {options.results}: run `python -m benchmarks offline --vs transformers` first.")
        return 1
    stale = []
    for path, text in pages(options).items():
        if options.check:
            stale += [path] if not path.exists() or path.read_text() != text else []
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"written: {path}")
    for path in stale:
        print(f"{path} does not show the results as they are: run `python -m benchmarks chart`.")
    return 1 if stale else 0


def pages(options: argparse.Namespace) -> dict[Path, str]:
    """Every page and picture that shows results, as it should be."""
    found = {name: report.load_all(name, options.results) for name in BENCHMARKS}
    readme = with_tables(options.readme.read_text(), found)
    written = {options.images / "offline.svg": draw(found["offline"][0])}
    if found["kernels"]:
        written |= kernels_page.page(found["kernels"], options.kernels, options.images)
        untuned = [untuned_table(document) for document in found["untuned"]]
        written[options.kernels] = report.fill_marks(written[options.kernels], untuned, "untuned")
    if found["gpu"]:
        engines = with_quick_host(found["gpu"][0], next(iter(found["gpu-quick-host"]), None))
        readme = report.fill_marks(readme, [headlines(engines)], "gpu")
        written |= gpu_page.page(engines, found["kernels"], options.gpu, options.images)
        served = [tables.served_table(document) for document in found["served"]]
        first = [served_table(document) for document in found["gpu-served"]]
        others = [
            table for document in found["gpu"][1:] for table in (gpu_table(document), aims_table(document["results"]))
        ]
        written[options.gpu] = report.fill_marks(written[options.gpu], others, "other GPUs")
        written[options.gpu] = report.fill_marks(written[options.gpu], served, "served")
        written[options.gpu] = report.fill_marks(written[options.gpu], first, "first seconds")
    if found["vllm"]:
        shown = [tables.vllm_table(document) for document in found["vllm"]]
        text = report.fill_marks(options.vllm.read_text(), shown)
        on_gpu = [gpu_table(document) for document in found["gpu-in-vllm"]]
        written[options.vllm] = report.fill_marks(text, on_gpu, "gpu")
    if found["masks"]:
        text = options.structured_output.read_text()
        table = tables.masks_table(found["masks"][0], next(iter(found["mask-steps"]), None))
        written[options.structured_output] = report.fill_marks(text, [table], "masks")
    if found["speculation"]:
        shown = [tables.speculation_table(document) for document in found["speculation"]]
        text = report.fill_marks(options.speculation.read_text(), shown)
        gains = [gains_table(document) for document in found["gpu-speculation"]]
        text = report.fill_marks(text, gains, "gpu")
        rules = [tables.acceptance_table(document) for document in found["acceptance"]]
        written[options.speculation] = report.fill_marks(text, rules, "acceptance")
    return written | {options.readme: readme}


def with_tables(text: str, found: Mapping[str, list[dict[str, Any]]]) -> str:
    """The README with the tables of the results between its marks."""
    shown = [tables.offline_table(document) for document in found.get("offline", ())]
    for name, (lead, table) in README_TABLES.items():
        shown += [f"{lead}:\n\n{table(document)}" for document in found.get(name, ())]
    return report.fill_marks(text, shown)


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
    cpu, settings = report.cpu_with_instructions(document["machine"]), document["settings"]
    note = f"{cpu}, {settings['threads']} threads, {settings['dtype']}"
    return _SVG.format(width=WIDTH, height=top, body="\n".join(parts), model=settings["model"], note=note)


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
