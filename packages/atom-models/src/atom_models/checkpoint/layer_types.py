"""Which layers attend to a sliding window, in models that mix them with full ones. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

FULL, SLIDING = "full_attention", "sliding_attention"


def check_layer_types(layer_types: Sequence[str], num_layers: int) -> tuple[str, ...]:
    """`layer_types` of `config.json`, one for each layer.

    Raises:
        ValueError: a type that is unknown, or another number of them.
    """
    if len(layer_types) != num_layers:
        raise ValueError(f"layer_types has {len(layer_types)} entries for num_hidden_layers {num_layers}")
    for layer_id, layer_type in enumerate(layer_types):
        if layer_type not in (FULL, SLIDING):
            raise ValueError(f"layer_types[{layer_id}] is {layer_type!r}; supported: {FULL}, {SLIDING}")
    return tuple(layer_types)
