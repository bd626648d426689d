"""OpenAI-compatible HTTP server and the `atom` command line, on `atom_core`. Imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atom_server.app import create_app
    from atom_server.options import ServerOptions

__version__ = "0.1.0"

_HOMES = {"create_app": "atom_server.app", "ServerOptions": "atom_server.options"}

__all__ = ["ServerOptions", "create_app"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
