"""How the command line logs: one plain line each, to stderr."""

from __future__ import annotations

import logging
import sys

from atom_core.log_lines import LineFormatter
from atom_server import settings


def configure_logging(level: str = "info") -> None:
    """Send log lines to stderr, the engine's too. Libraries only speak up when something is wrong."""
    settings.default_engine_log_level(level)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    for name in ("atom_server", "atom_core", "atom_models", "atom_kernels"):
        logging.getLogger(name).setLevel(level.upper())
