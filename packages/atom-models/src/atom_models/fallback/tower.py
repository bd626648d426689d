"""`TransformersTower`: the part of transformers' model that sees."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from atom_models.fallback.admission import refuse_pictures
from atom_models.vision.tower import RunLayers, VisionTower
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
    expected = [2 * (height // spec.unit) * (width // spec.unit), table.shape[1]]
    if list(found.shape) != expected:
        reason = f"it gives two pictures features of {list(found.shape)}, and prompts have room for {expected}"
        raise refuse_pictures(model_type, reason)


def _features(model: Any, pixels: torch.Tensor) -> torch.Tensor:
    """``[tokens of all pictures, width]``; the pictures have one size."""
    found = model.get_image_features(pixel_values=pixels, return_dict=True).pooler_output
    return torch.cat(list(found))


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

    def encode(self, pictures: Sequence[torch.Tensor], run: RunLayers | None = None) -> list[torch.Tensor]:
        """Those of one size run as one batch."""
        sizes, found = [picture.shape for picture in pictures], {}
        for size in dict.fromkeys(sizes):
            own = [index for index, other in enumerate(sizes) if other == size]
            features = super().encode([pictures[index] for index in own], run)
            found |= zip(own, features, strict=True)
        return [found[index] for index in range(len(pictures))]

    def begin(self, pictures: Sequence[torch.Tensor] | torch.Tensor, batch: PictureBatch) -> TowerStep:
        pixels = self.pixel_values(pictures).to(self._dtype)
        return TowerStep(pixels, (starts_of(batch.lengths, batch.device),))

    def run(self, step: TowerStep) -> torch.Tensor:
        return _features(self._model(), step.rows)

    def pixel_values(self, pictures: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
        """uint8 ``[height, width, 3]`` each, of one size -> float32 ``[pictures, 3, height, width]``."""
        pixels = torch.stack(list(pictures)).to(self._device).float().mul_(1 / 255)
        return pixels.sub_(self._mean).div_(self._std).permute(0, 3, 1, 2)

    def given(self, pictures: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """What a model of transformers takes for the pictures of a prompt, as processors give it."""
        if not pictures:
            return {}
        if not self.spec.has_sizes:
            return {"pixel_values": self.pixel_values(pictures)}
        sizes = torch.tensor([picture.shape[:2] for picture in pictures])
        height, width = sizes.amax(0).tolist()
        pixels = torch.zeros(len(pictures), 3, height, width, device=self._device)
        for place, picture in zip(pixels, pictures, strict=True):
            place[:, : picture.shape[0], : picture.shape[1]] = self.pixel_values([picture])[0]
        return {"pixel_values": pixels, "image_sizes": sizes}
