"""The method by which a checkpoint was quantized, as its `quantization_config` names it. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_models.checkpoint.errors import CheckpointError


class UnsupportedQuantizationError(CheckpointError):
    """The checkpoint's or the requested quantization is not known here; the message names those that are."""


def quantization_method(config: Mapping[str, Any]) -> str | None:
    """Such as ``"fp8"`` or ``"compressed-tensors"``, of a (normalized) config; None where it is not quantized."""
    given = config.get("quantization_config")
    if given is None:
        return None
    return str(given.get("quant_method") if isinstance(given, Mapping) else given).lower().replace("_", "-")
