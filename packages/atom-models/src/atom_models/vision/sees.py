"""What a language model has that sees: a tower, features in the place of embeddings, positions in three directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from atom_models.build_context import BuildContext
from atom_models.decoder.causal_lm import Decoder, DecoderForCausalLM
from atom_models.layers import Residual, Rotary, axes_of_columns
from atom_models.layers.loadable import loadable
from atom_models.vision.reading import Vision
from atom_models.vision.seen import SeenRows
from atom_models.vision.spec import VisionSpec
from atom_models.vision.tower import VisionTower


class SeeingDecoder(Decoder):
    """A decoder that takes what a tower gave for some of its rows."""

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: Any,
        inputs_embeds: torch.Tensor | None = None,
        seen: SeenRows | None = None,
    ) -> Any:
        embeds = self.embed(input_ids) if inputs_embeds is None else inputs_embeds
        if seen is None:
            return self.end(*self.run_layers(positions, Residual(embeds)))
        return self.end(*self._run_and_add(positions, Residual(seen.embedded(embeds)), seen))

    def _run_and_add(self, positions: Any, residual: Residual, seen: SeenRows) -> tuple[Residual, list[Residual]]:
        """As `run_layers`; what was seen is added behind the first ones."""
        aux, num_layers = [], seen.num_layers(residual.tensor().shape[1])
        for layer_id, layer in enumerate(self.layers):
            residual = layer(positions, residual)
            if layer_id < num_layers:
                residual = Residual(seen.added(layer_id, residual.tensor()))
            if layer_id in self.aux_layer_ids:
                aux.append(residual)
        return residual, aux


class Sees(DecoderForCausalLM):
    """Stands before the language model among the bases of a class.

    Args:
        vision: what the tower is built from; None builds none, and passes its weights over.

    Attributes:
        tower: the tower's class.
        vision_prefixes: beginnings of the names of the tower's weights; the first one is its own name.
        vision_spec: what hosts need to know of pictures; None where the model takes none.
        vision: the tower; None where the model takes no pictures, and in all stages of a pipeline but the first.
        rotary: what layers turn queries and keys by.
    """

    tower: ClassVar[Callable[..., VisionTower]]
    vision_prefixes: ClassVar[tuple[str, ...]] = ("model.visual",)
    decoder = SeeingDecoder
    rotary: Rotary

    def __init__(self, config: Mapping[str, Any], context: BuildContext, vision: Vision | None = None) -> None:
        if vision is not None:
            context = replace(context, sees_ahead=vision.spec.sees_ahead)
        super().__init__(config, context)
        self.vision_spec: VisionSpec | None = None if vision is None else vision.spec
        self.vision: VisionTower | None = None
        self._axes: torch.Tensor | None = None
        if vision is not None and vision.spec.has_threefold_positions:
            self._axes = axes_of_columns(self.config.rope, self.rotary)
        if vision is None or not context.stage.is_first:
            self.ignored_prefixes += tuple(f"{prefix}." for prefix in self.vision_prefixes)
            return
        self.vision = type(self).tower(vision, context, prefix=self.vision_prefixes[0])
        size, num_layers = self.config.hidden_size, len(self.model.layers)
        parts, left = divmod(self.vision.width, size)
        if left or not 1 <= parts <= 1 + num_layers:
            raise ValueError(
                f"the tower gives {self.vision.width} elements for each token of a picture: the embedding, and what is "
                f"added behind each of the first layers; hidden_size is {size}, and there are {num_layers} layers here"
            )

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
        *,
        seen: SeenRows | None = None,
    ) -> Any:
        """As `DecoderForCausalLM.forward`.

        Args:
            positions: int64 ``[T]``, or ``[3, T]`` in time, height and width; see `threefold_positions`.
            seen: what the tower gave for rows of pictures.
        """
        if positions.dim() == 1:
            return self.model(input_ids, positions, inputs_embeds, seen)
        if self._axes is None:
            raise ValueError(
                "positions are [3, T], and tokens of this model have one each: it was built without pictures"
            )
        return self.model(input_ids, self.rotary.at(positions, self._axes), inputs_embeds, seen)


def tower_of(model: nn.Module) -> VisionTower | None:
    """What makes features of pictures; None in a model without."""
    tower = getattr(model, "vision", None)
    return tower if isinstance(tower, VisionTower) else None


def language_modules(model: nn.Module) -> list[nn.Module]:
    """All modules of a model but those of its tower: what tokens of texts pass."""
    tower = set() if (found := tower_of(model)) is None else set(found.modules())
    return [module for module in model.modules() if module not in tower]


def num_tower_weights(model: nn.Module) -> int:
    """How many weights the tower has; 0 without one."""
    tower = tower_of(model)
    return 0 if tower is None else sum(weights.num_numbers for layer in loadable(tower) for weights in layer.weights())
