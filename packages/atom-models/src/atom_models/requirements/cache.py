"""How much cache a token takes, and in which layers it stays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from atom_kernels.protocols import CacheLayout
from atom_models.model import mixer_layers


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same tokens.

    Attributes:
        window: tokens that stay cached; None keeps all.
        num_layers: in the group.
        elements_per_token: numbers cached for a token, over all layers of the group, on one rank.
    """

    window: int | None
    num_layers: int
    elements_per_token: int

    def tokens_kept(self, num_tokens: int, block_size: int) -> int:
        """Tokens of a request of `num_tokens` that take up cache: at most a window, and a block that it has begun."""
        return num_tokens if self.window is None else min(num_tokens, self.window + block_size)


def cache_groups(model: nn.Module) -> tuple[CacheGroup, ...]:
    """The groups of one rank's model, the one that keeps everything first."""
    groups: dict[int | None, list[CacheLayout]] = {}
    for layer in mixer_layers(model).values():
        groups.setdefault(layer.problem.sliding_window, []).append(layer.problem.layout)
    return tuple(
        CacheGroup(window, len(layouts), sum(layout.elements_per_token for layout in layouts))
        for window, layouts in sorted(groups.items(), key=lambda item: item[0] or 0)
    )
