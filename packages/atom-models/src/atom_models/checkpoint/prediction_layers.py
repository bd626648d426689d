"""How many layers of a checkpoint predict further tokens. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_models.checkpoint.errors import CheckpointError

# The fields that give it, as different publishers spell them.
_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules")


def num_prediction_layers(config: Mapping[str, Any]) -> int:
    """What a config declares; 0 where it declares none. Their weights lie behind those of the last layer.

    Raises:
        CheckpointError: a field is not a count.
    """
    counts = [0]
    for name in _COUNTS:
        value = config.get(name) or 0
        if not isinstance(value, int) or value < 0:
            raise CheckpointError(f"config.json: {name} is {value!r}, not a number of layers")
        counts.append(int(value))
    return max(counts)


def prediction_layer_names(config: Mapping[str, Any], decoder: str = "model") -> tuple[str, ...]:
    """Names of the layers that predict further tokens, such as ``model.layers.61`` of the decoder ``model``."""
    first = int(config["num_hidden_layers"])
    return tuple(f"{decoder}.layers.{first + index}" for index in range(num_prediction_layers(config)))
