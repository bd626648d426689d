"""Finds what our plugin says in a log of vLLM's."""

from __future__ import annotations

import re

# vLLM lists the plugins that are installed, also those that then do nothing.
_LISTED = re.compile(r"\b(atom|atom_model_registry) -> atom_vllm\S*")
# A checkout, and so an environment in it, may be called "atom".
_PATH = re.compile(r"[^\s'\"(,=]*/[^\s'\",)]*")


def lines_of_ours(log: str) -> list[str]:
    """The lines that name ATOM other than in a path or in vLLM's list of plugins."""
    return [line for line in log.splitlines() if "atom" in _PATH.sub("", _LISTED.sub("", line)).lower()]
