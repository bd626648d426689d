"""Old names of moved modules: found by a finder on ``sys.meta_path``, so there is no file of that name to read."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import ModuleSpec

PREFIX = "aiter.ops.triton."


class FlatNames:
    """A finder that answers for the old names with the module at the new place."""

    def __init__(self, moved: dict[str, str]) -> None:
        self.moved = {PREFIX + old: PREFIX + new for old, new in moved.items()}

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Import the module at its new place under both names."""
        if fullname not in self.moved:
            return None
        sys.modules[fullname] = importlib.import_module(self.moved[fullname])
        return importlib.util.find_spec(self.moved[fullname])


def install(moved: dict[str, str]) -> None:
    """Let the old names (keys, without the prefix) be imported too."""
    sys.meta_path.insert(0, FlatNames(moved))
