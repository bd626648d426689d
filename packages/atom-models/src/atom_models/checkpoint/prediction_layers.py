"""How many layers of a checkpoint predict further tokens. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_models.checkpoint.errors import CheckpointError

# The fields that give it, as different publishers spell them.
_COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules", "mtp_num_hidden_layers")


def num_prediction_layers(config: Mapping[str, Any]) -> int:
    """What a config declares; 0 where it declares none.

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
