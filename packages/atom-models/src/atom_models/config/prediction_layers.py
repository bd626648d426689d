"""Layers after a model's last that predict further tokens; a model that has no use for them leaves them unread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The fields that give their number, as different publishers spell them.
_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules")


def prediction_layer_prefixes(config: Mapping[str, Any], *, prefix: str = "model") -> tuple[str, ...]:
    """What the names of their weights start with, for `ignored_prefixes` of a model."""
    count = max(int(config.get(name) or 0) for name in _COUNTS)
    first = int(config["num_hidden_layers"])
    return tuple(f"{prefix}.layers.{first + index}." for index in range(count))
