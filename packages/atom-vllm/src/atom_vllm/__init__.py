"""ATOM inside vLLM: its platform and model plugins."""

from __future__ import annotations

__version__ = "0.1.0"
