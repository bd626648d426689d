"""Writes the table of `docs/quantization.md` from what `atom bench accuracy --json` saved.

python tools/accuracy_table.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "quantization.md"
_BEGIN, _END = "<!-- accuracy: begin -->\n", "<!-- accuracy: end -->\n"


def page() -> str:
    """The page with the table of the results that are there; a baseline that several share stands there once."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return "\n".join([f"{before}{_BEGIN.rstrip()}", *dict.fromkeys(_lines()), f"{_END}{after}"])


def _lines() -> Iterator[str]:
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("accuracy-*.json"))]
    yield "| weights | KV cache | perplexity | change | KL | top-1 | machine |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for result in results:
        for row in result["results"]:
            yield _line(row, f"{result['machine']['name']}, {result['dtype']}")


def _line(row: dict[str, Any], machine: str) -> str:
    cells = [row["quantization"], row["kv_cache_dtype"], f"{row['perplexity']:.2f}", "", "", "", machine]
    if row["perplexity_change"] is not None:
        cells[3:6] = f"{row['perplexity_change']:+.2%}", f"{row['kl_divergence']:.4f}", f"{row['top1_agreement']:.1%}"
    return f"| {' | '.join(cells)} |"


def write() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    write()
