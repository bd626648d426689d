"""`PredictionNames`: what checkpoints call the parts of a layer that predicts a further token. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PredictionNames:
    """Names of the parts of one prediction layer.

    Attributes:
        own: what the names of all of its weights begin with.
        layer: the decoder layer.
        embed_norm, hidden_norm: norms of the next token's embedding, and of the hidden state.
        projection: what makes one of both.
        last_norm: the norm behind the layer.
        tables: beginnings of names of copies of the model's own embedding and head.
    """

    own: str
    layer: str
    embed_norm: str
    hidden_norm: str
    projection: str
    last_norm: str
    tables: tuple[str, ...] = ()


def behind_the_last_layer(decoder: str, num_layers: int, index: int) -> PredictionNames:
    """One more layer behind the `num_layers` of `decoder`, as DeepSeek and GLM name prediction layer `index`."""
    layer = f"{decoder}.layers.{num_layers + index}"
    return PredictionNames(
        own=f"{layer}.",
        layer=layer,
        embed_norm=f"{layer}.enorm",
        hidden_norm=f"{layer}.hnorm",
        projection=f"{layer}.eh_proj",
        last_norm=f"{layer}.shared_head.norm",
        tables=(f"{layer}.embed_tokens.", f"{layer}.shared_head.head."),
    )


def in_mtp(index: int) -> PredictionNames:
    """Prediction layer `index` beside the decoder, as Qwen names it. Layers share all but themselves."""
    return PredictionNames(
        own="mtp.",
        layer=f"mtp.layers.{index}",
        embed_norm="mtp.pre_fc_norm_embedding",
        hidden_norm="mtp.pre_fc_norm_hidden",
        projection="mtp.fc",
        last_norm="mtp.norm",
    )
