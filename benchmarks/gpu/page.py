"""The page of GPUs in the docs: its tables, and pictures of the figures beside the peer's and the floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.gpu.tables import gpu_tables
from benchmarks.report import fill_marks

MARKS = ("figures", "aims", "invariance", "profile")


def write_page(document: dict[str, Any], page: Path, images: Path) -> None:
    """Fill the page's marks from a `gpu` result, and draw its pictures."""
    page.write_text(with_tables(page.read_text(), document))


def with_tables(text: str, document: dict[str, Any]) -> str:
    """`text` with the tables of the results between its marks; between those without results there is nothing."""
    tables = gpu_tables(document)
    for name in MARKS:
        text = fill_marks(text, [tables[name]] if name in tables else [], name)
    return text
