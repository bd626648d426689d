"""The files of tuned configurations: one for each device and Triton version, read once.

``configs/<device>_triton-<major.minor>.json`` holds ``{"device", "arch", "triton", "operators": {operator: {key:
rows}}}``; `arch` is that of `Platform`, and its other devices may take what was tuned there.
A key names a problem by its sizes and dtype, as its operator likes to write them; its rows are
``{"max_rows": int or null, "config": {...}}`` by rising `max_rows`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "configs"


@dataclass(frozen=True)
class TunedRow:
    """What is best for calls of up to `max_rows` rows (None: all that are left); `config` is the operator's own."""

    max_rows: int | None
    config: Mapping[str, Any]


def tuned_rows(operator: str, key: str, device_name: str, folder: Path = FOLDER) -> tuple[TunedRow, ...] | None:
    """What was tuned on that device for an operator and a key: () where a rival was always faster.

    None where nothing was tuned.

    Args:
        operator: its name, such as ``"moe_experts"``.
        key: what the operator calls the problem.
        device_name: `Platform.name`, such as ``"NVIDIA H100 80GB HBM3"``.
        folder: where the files lie.
    """
    rows = _read(config_path(device_name, folder)).get("operators", {}).get(operator, {}).get(key)
    return None if rows is None else tuple(TunedRow(row["max_rows"], row["config"]) for row in rows)


@functools.cache
def tuned_on_arch(operator: str, arch: str, folder: Path = FOLDER) -> Mapping[str, tuple[TunedRow, ...]]:
    """What was tuned for an operator on any device of an architecture, by key: by this Triton, else by the newest.

    Args:
        arch: `Platform.arch`, such as ``"sm_90"``.
    """
    documents = [document for path in sorted(folder.glob("*.json")) if (document := _read(path)).get("arch") == arch]
    documents.sort(key=lambda one: (one["triton"] == triton_release(), _release(one["triton"])))
    found: dict[str, tuple[TunedRow, ...]] = {}
    for document in documents:
        for key, rows in document["operators"].get(operator, {}).items():
            found[key] = tuple(TunedRow(row["max_rows"], row["config"]) for row in rows)
    return found


def _release(name: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", name))


def config_path(device_name: str, folder: Path = FOLDER) -> Path:
    """The file for a device and the Triton that is installed here."""
    device = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return folder / f"{device}_triton-{triton_release()}.json"


def save_rows(
    operator: str,
    key: str,
    rows: Sequence[TunedRow],
    device_name: str,
    folder: Path = FOLDER,
    *,
    arch: str = "",
    tuned_from: int = 1,
) -> Path:
    """Put the rows of one key in place of those that the device's file has; the rest of the file stays.

    Args:
        arch: the device's architecture.
        tuned_from: the least number of rows that was tried: what the file has for fewer stays, too.
    """
    path = config_path(device_name, folder)
    document = dict(_read(path)) or {"device": device_name, "arch": "", "triton": triton_release(), "operators": {}}
    document["arch"] = arch or document.get("arch", "")
    operators = {name: dict(keys) for name, keys in document["operators"].items()}
    before = operators.get(operator, {})
    kept = [row for row in before.get(key, []) if row["max_rows"] is not None and row["max_rows"] < tuned_from]
    found = [{"max_rows": row.max_rows, "config": dict(row.config)} for row in rows]
    filed = {**before, key: kept + found}
    if not filed[key] and tuned_from > 1:
        # Fewer rows were never tuned.
        del filed[key]
    operators[operator] = dict(sorted(filed.items()))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document | {"operators": dict(sorted(operators.items()))}, indent=1) + "\n")
    _read.cache_clear()
    tuned_on_arch.cache_clear()
    return path


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


@functools.cache
def triton_release() -> str:
    """Major and minor version of the Triton that is installed here, "none" for none."""
    for name in ("triton", "pytorch-triton-rocm"):
        try:
            return ".".join(importlib.metadata.version(name).split(".")[:2])
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"
