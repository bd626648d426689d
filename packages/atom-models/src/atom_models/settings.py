"""Every environment variable that this package reads, each behind one function."""

from __future__ import annotations

import os
from pathlib import Path


def models_cache_dir() -> Path:
    """Where downloads are kept: ``models`` in ``ATOM_CACHE_DIR``, ``$XDG_CACHE_HOME/atom`` or ``~/.cache/atom``."""
    own = os.environ.get("ATOM_CACHE_DIR", "").strip()
    if own:
        return Path(own).expanduser() / "models"
    root = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(root) if root else Path.home() / ".cache") / "atom" / "models"
