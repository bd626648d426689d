"""`EngineArgs`, where ROCm/ATOM has it, with ROCm/ATOM's names of fields too."""

from __future__ import annotations

from typing import Any

import atom_core
from atom_core.config.other_names import with_own_names


class EngineArgs(atom_core.EngineArgs):
    """See `atom_core.EngineArgs`; keywords may have the names that `with_own_names` knows."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**with_own_names(keywords))
