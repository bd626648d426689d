"""The environment variables that the server reads; nothing else in this package looks at the environment."""

from __future__ import annotations

import os


def api_key() -> str | None:
    """``ATOM_API_KEY``: the bearer token that requests must carry, where ``--api-key`` gives none."""
    return os.environ.get("ATOM_API_KEY") or None


def debug() -> bool:
    """``ATOM_DEBUG``: show tracebacks of errors that are otherwise told in one line."""
    return os.environ.get("ATOM_DEBUG", "") not in ("", "0")
