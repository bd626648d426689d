"""`TransformersTower`: the part of transformers' model that sees, for pictures of one size."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom_models.fallback.admission import refuse_pictures
from atom_models.vision.tower import VisionTower
from atom_models.vision.towers.step import TowerStep, starts_of

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.fallback.weights import WeightGroup
    from atom_models.vision.batch import PictureBatch
    from atom_models.vision.spec import VisionSpec

# What a model is told of pictures beside their pixels, for positions in several directions or masks that look ahead.
_TOLD = frozenset(("token_type_ids", "mm_token_type_ids", "image_grid_thw", "position_deltas"))


def tower_modules(model: Any) -> set[nn.Module]:
    """All of the model but its decoder and its head: none where it reads text alone."""
    decoder = set(model.get_decoder().modules())
    return {module for module in model.base_model.modules() if module not in decoder}


def check_pictures(model: Any, spec: VisionSpec) -> None:
    """Runs the tower of a model on the meta device, where nothing is computed.

    Raises:
        FallbackRefusedError: a picture takes more than features in the place of its tokens, or has another number.
    """
    model_type, table = model.config.model_type, model.get_input_embeddings().weight
    if told := sorted(_TOLD & inspect.signature(type(model).forward).parameters.keys()):
        raise refuse_pictures(model_type, f"its decoder reads {told[0]}, for other masks or positions of pictures")
    if spec.image_token_id >= len(table):
        reason = f"the image token is {spec.image_token_id}, and there are embeddings of {len(table)} tokens"
        raise refuse_pictures(model_type, reason)
    height, width = spec.fitted(1, 1)
    try:
        with torch.no_grad():
            found = _features(model, torch.zeros(2, 3, height, width, dtype=table.dtype, device="meta"))
    except Exception as error:
        raise refuse_pictures(model_type, f"its tower does not run ({type(error).__name__}: {error})") from None
    expected = [2, spec.num_tokens(height, width), table.shape[1]]
    if list(found.shape) != expected:
        reason = f"it gives two pictures features of {list(found.shape)}, and prompts have room for {expected}"
        raise refuse_pictures(model_type, reason)


def _features(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """``[pictures, tokens of one, width]``."""
    found = model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
    return found if isinstance(found, torch.Tensor) else torch.stack(list(found))


class TransformersTower(VisionTower):
    """Calls `get_image_features` of a model of transformers.

    Args:
        model: one that passed `check_pictures`.
        spec: which pictures it sees.
        weights: the tower's.
    """

    def __init__(self, model: Any, spec: VisionSpec, weights: Sequence[WeightGroup], context: BuildContext) -> None:
        nn.Module.__init__(self)
        # Behind a function, so that torch does not count the decoder as a part of the tower.
        self._model = lambda: model
        self.spec, self.weights = spec, nn.ModuleList(weights)
        self.width, self.rows_of_unit = int(model.get_input_embeddings().weight.shape[1]), 1
        self._device, self._dtype = torch.device(context.device), context.dtype
        self._mean, self._std = (torch.tensor(each, device=self._device) for each in (spec.mean, spec.std))

    @property
    def capturable(self) -> bool:
        return False

    def begin(self, pictures: Sequence[torch.Tensor] | torch.Tensor, batch: PictureBatch) -> TowerStep:
        pixels = self.pixel_values(pictures).to(self._dtype)
        return TowerStep(pixels, (starts_of(batch.lengths, batch.device),))

    def run(self, step: TowerStep) -> torch.Tensor:
        return _features(self._model(), step.rows).flatten(0, 1)

    def pixel_values(self, pictures: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
        """uint8 ``[height, width, 3]`` each -> float32 ``[pictures, 3, height, width]``, as processors give them."""
        pixels = torch.stack(list(pictures)).to(self._device).float().mul_(1 / 255)
        return pixels.sub_(self._mean).div_(self._std).permute(0, 3, 1, 2)
