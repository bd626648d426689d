"""Files that sentence-transformers writes beside a model; one that is missing or damaged says nothing. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Prompts of an encoder; what the scores of a cross-encoder go through.
SETTINGS = "config_sentence_transformers.json"


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file; an empty one where there is none."""
    value = read_json(path)
    return value if isinstance(value, dict) else {}


def read_json(path: Path) -> Any:
    """What a file holds; None where it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
