"""Writes a breakdown as a workbook of Excel; needs openpyxl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atom_server.traces.breakdown import Breakdown
from atom_server.traces.trace_file import TraceError

COLUMNS = (
    "cpu_module", "gpu_kernel", "duration_us", "share", "sum_us", "module_share",
    "avg_duration_us", "avg_sum_us", "num_layers", "roofline_share",
)  # fmt: skip
_OF_MODULE = ("cpu_module", "sum_us", "module_share", "avg_sum_us", "roofline_share")
_WIDTHS = {"cpu_module": 28, "gpu_kernel": 70}


def check_workbooks() -> None:
    """Raise TraceError where none can be written."""
    try:
        import openpyxl  # noqa: F401
    except ImportError:
        raise TraceError("workbooks need openpyxl: pip install openpyxl") from None


def write_workbook(path: Path, found: Breakdown) -> None:
    """A sheet of the layer, in which the cells of a module are merged, and one of the whole step."""
    from openpyxl import Workbook
    from openpyxl.styles import Alignment, Font

    book = Workbook()
    sheet: Any = book.active
    sheet.title = f"{found.phase} layer {found.layer}"
    sheet.append(COLUMNS)
    total = found.layer_microseconds or 1.0
    for module, rows in found.of_modules().items():
        first = sheet.max_row + 1
        module_sum = sum(row.microseconds for row in rows)
        mean_sum = sum(row.mean_microseconds for row in rows)
        for row in rows:
            of_kernel = (module, row.kernel, row.microseconds, row.share, module_sum, module_sum / total)
            sheet.append((*of_kernel, row.mean_microseconds, mean_sum, row.num_layers, row.roofline))
        if len(rows) > 1:
            for name in _OF_MODULE:
                column = COLUMNS.index(name) + 1
                sheet.merge_cells(start_row=first, end_row=sheet.max_row, start_column=column, end_column=column)
                sheet.cell(first, column).alignment = Alignment(vertical="top")
    sheet.append(["sum", None, found.layer_microseconds, 1.0])
    sheet.freeze_panes = "A2"
    for number, name in enumerate(COLUMNS, 1):
        sheet.cell(1, number).font = Font(bold=True)
        sheet.column_dimensions[sheet.cell(1, number).column_letter].width = _WIDTHS.get(name, 16)
    _write_step(book.create_sheet("step"), found)
    book.save(path)


def _write_step(sheet: Any, found: Breakdown) -> None:
    sheet.append(["cpu_module", "duration_us", "share"])
    for module, microseconds in found.modules.items():
        sheet.append([module, microseconds, microseconds / (found.step_microseconds or 1.0)])
    sheet.append(["sum", found.step_microseconds, 1.0])
    sheet.column_dimensions["A"].width = 40
