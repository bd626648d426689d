"""`StructuredOutputConfig`: the section of the configuration about grammars. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from atom_core.structured_output.constraints.choice import BackendSetting


@dataclass(frozen=True)
class StructuredOutputConfig:
    """Which library makes masks, and whether tokens without a choice are sampled all the same."""

    backend: BackendSetting = "auto"
    jump_forward: bool = True
