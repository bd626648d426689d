"""The page of GPUs in the docs: its tables, and pictures of the figures beside the peer's and the floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.gpu.pictures import PICTURES, pictures
from benchmarks.gpu.tables import SUBJECTS, VARIANTS, gpu_tables
from benchmarks.report import fill_marks

TABLES = ("figures", "hosts", *VARIANTS, *SUBJECTS)


def page(document: dict[str, Any], kernels: list[dict[str, Any]], path: Path, images: Path) -> dict[Path, str]:
    """The page with its marks filled from a `gpu` result and those of `kernels`, and its pictures."""
    drawn = {images / name: picture for name, picture in pictures(document).items()}
    return drawn | {path: with_tables(path.read_text(), document, kernels)}


def with_tables(text: str, document: dict[str, Any], kernels: list[dict[str, Any]]) -> str:
    """`text` with the pictures and tables of the results between its marks; of what was not measured there is none."""
    tables = gpu_tables(document, [result for found in kernels for result in found["results"]])
    for name in TABLES:
        text = fill_marks(text, [tables[name]] if name in tables else [], name)
    shown = [f"![{PICTURES[name[4:-4]]}](images/{name})" for name in pictures(document)]
    return fill_marks(text, shown, "pictures")
