"""Configs of published models, as their publishers spell them; the weights stay with the publishers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

FOLDER = Path(__file__).parent / "published"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


def architecture_of(name: str) -> str:
    """What a config says that it is a model of."""
    return json.loads((FOLDER / f"{name}.json").read_text())["architectures"][0]


def write_published_config(name: str, folder: Path) -> Path:
    """Puts a config where a checkpoint would have it, and returns the folder."""
    shutil.copy(FOLDER / f"{name}.json", folder / "config.json")
    return folder
