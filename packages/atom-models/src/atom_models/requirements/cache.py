"""How much cache a token takes, and in which layers it stays."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from atom_kernels.protocols import KVCacheSpec
from atom_models.model import attention_layers


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
        """Of a request of `num_tokens`, those that take up cache: at most a window, and a block that it has begun."""
        return num_tokens if self.window is None else min(num_tokens, self.window + block_size)


def cache_groups(model: nn.Module) -> tuple[CacheGroup, ...]:
    """The groups of one rank's model, the one that keeps everything first."""
    groups: dict[int | None, list[KVCacheSpec]] = {}
    for layer in attention_layers(model).values():
        groups.setdefault(layer.kv_cache_spec.sliding_window, []).append(layer.kv_cache_spec)
    return tuple(
        CacheGroup(
            window,
            len(specs),
            sum((1 if spec.latent else 2) * spec.num_kv_heads * spec.head_dim for spec in specs),
        )
        for window, specs in sorted(groups.items(), key=lambda item: item[0] or 0)
    )
