"""`DeviceTraits`: what is chosen and allowed by the kind of device alone. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class DeviceTraits:
    """How engines are set up on a kind of device.

    Attributes:
        token_budget: tokens of a step, at most, unless something else is asked for.
        token_budget_reason: why it is that many.
        has_graphs: steps can be captured.
        one_rank_each: every rank needs a device of its own.
        cache_cap: bytes that the KV cache takes unless more is asked for; None takes all that is left.
        overcommits: more memory than there is can be allocated, and the process ends when it is written.
    """

    token_budget: int
    token_budget_reason: str
    has_graphs: bool
    one_rank_each: bool
    cache_cap: int | None
    overcommits: bool


CPU = DeviceTraits(
    token_budget=512,
    token_budget_reason="steps stay short on a CPU",
    has_graphs=False,
    one_rank_each=False,
    cache_cap=2 << 30,  # its memory belongs to other programs too
    overcommits=True,
)
GPU = DeviceTraits(
    token_budget=16384,
    token_budget_reason="large steps keep a GPU busy",
    has_graphs=True,
    one_rank_each=True,
    cache_cap=None,
    overcommits=False,
)


def traits_of(device: str) -> DeviceTraits:
    """The traits of a device by torch's name for its type, "cpu" or "cuda"."""
    return CPU if device == "cpu" else GPU
