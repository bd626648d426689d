"""Writes what torch's profiler recorded as gzipped JSON."""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def write_trace(profile: torch.profiler.profile, path: Path) -> Path:
    """Export a trace that has ended to `path`, which ends with .json.gz."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        plain = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(plain))
        with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=5) as packed:
            shutil.copyfileobj(source, packed)
    return path


def events_of(profile: torch.profiler.profile, categories: Sequence[str]) -> list[dict[str, Any]]:
    """The events of some categories of a trace that has ended."""
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.json"
        profile.export_chrome_trace(str(plain))
        events = json.loads(plain.read_bytes())["traceEvents"]
    return [event for event in events if event.get("cat") in categories]


def write_events(events: Sequence[dict[str, Any]], path: Path) -> Path:
    """Write a trace of these events alone."""
    with gzip.open(path, "wt", compresslevel=5) as packed:
        json.dump({"traceEvents": list(events)}, packed)
    return path
