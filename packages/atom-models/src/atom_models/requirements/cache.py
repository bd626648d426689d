"""How much cache a token takes, and in which layers it stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from atom_models.architectures import features
from atom_models.architectures.layer_types import SLIDING
from atom_models.requirements.fields import Config, head_counts, size

# Of the published Gemma 3 models: each sixth layer is a full one.
_DEFAULT_PATTERN = 6


@dataclass(frozen=True)
class CacheGroup:
    """Layers that keep the same tokens.

    Attributes:
        window: tokens that stay cached; None keeps all.
        num_layers: in the group.
        elements_per_token: numbers cached for a token, over all layers of the group.
        num_heads: KV heads that tensor-parallel ranks can share; 1 for a latent, which each rank holds.
    """

    window: int | None
    num_layers: int
    elements_per_token: int
    num_heads: int

    def tokens_kept(self, num_tokens: int, block_size: int) -> int:
        """Of a request of `num_tokens`, those that take up cache: at most a window, and a block that it has begun."""
        return num_tokens if self.window is None else min(num_tokens, self.window + block_size)

    def elements_on_a_rank(self, num_ranks: int) -> int:
        """`elements_per_token` on each of that many tensor-parallel ranks."""
        return self.elements_per_token * -(-self.num_heads // num_ranks) // self.num_heads


def cache_groups(config: Config, traits: Collection[str]) -> tuple[CacheGroup, ...]:
    """The groups of a model, the one that keeps everything first."""
    layers = size(config, "num_hidden_layers")
    if features.LATENT_ATTENTION in traits:
        latent = size(config, "kv_lora_rank") + size(config, "qk_rope_head_dim")
        return (CacheGroup(None, layers, layers * latent, 1),)
    _, kv_heads, head_dim = head_counts(config)
    windows = [_window(config, layer_id) if features.SLIDING_WINDOW in traits else None for layer_id in range(layers)]
    counted = Counter(windows)
    return tuple(
        CacheGroup(window, counted[window], counted[window] * 2 * kv_heads * head_dim, kv_heads)
        for window in sorted(counted, key=lambda window: window or 0)
    )


def _window(config: Config, layer_id: int) -> int | None:
    if not config.get("sliding_window") or not config.get("use_sliding_window", True):
        return None
    types, pattern = config.get("layer_types"), config.get("sliding_window_pattern")
    if types is not None:
        slides = types[layer_id] == SLIDING
    elif "max_window_layers" in config:
        slides = layer_id >= config["max_window_layers"]
    elif pattern is not None or config.get("model_type") == "gemma3_text":
        slides = (layer_id + 1) % (pattern or _DEFAULT_PATTERN) != 0
    else:
        slides = True
    return config["sliding_window"] if slides else None
