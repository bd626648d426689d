"""Our packages beside a vLLM that is not installed but lies in a folder: sources and entry points on PYTHONPATH."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from benchmarks.gpu.settings import ROOT

SOURCES = [ROOT / "packages" / name / "src" for name in ("atom-kernels", "atom-models", "atom-vllm")]


def write_metadata(folder: Path) -> Path:
    """What pip would write of `atom-vllm` for vLLM to find its plugins by; returns `folder`."""
    project = tomllib.loads((ROOT / "packages" / "atom-vllm" / "pyproject.toml").read_text())["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {where}\n" for name, where in points.items())
        for group, points in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    return folder


def plugin_path(folder: Path, vllm_path: str) -> str:
    """PYTHONPATH of a vLLM at `vllm_path` that finds our plugins; `folder` gets their metadata."""
    return os.pathsep.join([str(write_metadata(folder)), *map(str, SOURCES), vllm_path, str(ROOT)])
