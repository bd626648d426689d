"""A line that tells how the length served decides about the rotation. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def rope_choice(config: Mapping[str, Any], max_model_len: int) -> str | None:
    """A line where the rotation of a (normalized) text config depends on the longest request; None where it does not.

    Published code chooses anew for each text. Keys in a cache cannot be turned again, so that here the choice is made
    once, for all requests: `atom_kernels.rotary.tables` makes it.
    """
    rope = config.get("rope_parameters") or {}
    kind, trained = rope.get("rope_type"), rope.get("original_max_position_embeddings")
    if kind == "longrope" and trained and rope.get("long_factor") != rope.get("short_factor"):
        if max_model_len <= trained:
            return f"rope = longrope's short factors: max_model_len {max_model_len} is within the original {trained}"
        return (
            f"rope = longrope's long factors for requests of every length: max_model_len {max_model_len} is above the "
            f"original {trained}; --max-model-len {trained} takes the short ones"
        )
    if kind == "dynamic":
        trained = trained or config.get("max_position_embeddings") or max_model_len
        if max_model_len <= trained:
            return f"rope = dynamic, not stretched: max_model_len {max_model_len} is within the original {trained}"
        return (
            f"rope = dynamic, stretched for requests of every length: max_model_len {max_model_len} is above the "
            f"original {trained}; --max-model-len {trained} does not stretch it"
        )
    return None
