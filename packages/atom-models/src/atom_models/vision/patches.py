"""From pixels to the first hidden states: patches, and the product that embeds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.select import select
from atom_models.layers.loadable import not_loaded
from atom_models.layers.weighted_layer import WeightedLayer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.vision.spec import VisionSpec

_COLORS = 3


def cut(picture: torch.Tensor, spec: VisionSpec) -> torch.Tensor:
    """uint8 ``[height, width, 3]`` -> ``[patches, 3, patch_size ** 2]``, those of a square that is merged together."""
    (height, width, _), size, side = picture.shape, spec.patch_size, spec.merge_size
    patches = picture.view(height // spec.unit, side, size, width // spec.unit, side, size, _COLORS)
    return patches.permute(0, 3, 1, 4, 6, 2, 5).reshape(-1, _COLORS, size * size)


class PatchEmbedding(WeightedLayer):
    """``forward(pictures) -> [patches of all, hidden_size]``; the pictures are uint8 ``[height, width, 3]``, or of a
    video ``[frames, height, width, 3]``; or all of them are one tensor of patches, as `prepared` gives it.

    Checkpoints have a convolution whose strides are its kernel's sizes: that is a product over patches. Where it is one
    over frames of a video, a picture is a video that stands still, so its patches are repeated for each frame.

    Args:
        num_frames: frames of a patch; None where the convolution is one over pictures.
        bias: the checkpoint has one.
    """

    def __init__(
        self,
        spec: VisionSpec,
        hidden_size: int,
        context: BuildContext,
        *,
        prefix: str,
        num_frames: int | None = None,
        bias: bool,
    ) -> None:
        super().__init__(context)
        frames = () if num_frames is None else (num_frames,)
        self._spec, self._num_frames = spec, num_frames or 1
        mean, std = (torch.tensor(each).view(_COLORS, 1, 1) for each in (spec.mean, spec.std))
        self._mean, self._std = mean.to(context.device), std.to(context.device)
        shape = (hidden_size, _COLORS, *frames, spec.patch_size, spec.patch_size)
        self.expect(f"{prefix}.weight", shape)
        if bias:
            self.expect(f"{prefix}.bias", (hidden_size,), slot="bias")
        in_features = _COLORS * self._num_frames * spec.patch_size**2
        self._problem = LinearProblem(in_features, hidden_size, context.dtype, bias)
        self._apply: Callable[..., Any] = not_loaded(prefix)

    def forward(self, pictures: Sequence[torch.Tensor] | torch.Tensor) -> torch.Tensor:
        patches = pictures if isinstance(pictures, torch.Tensor) else self.prepared(pictures)
        return self._apply(patches.to(self._context.dtype).flatten(1))

    def prepared(self, pictures: Sequence[torch.Tensor]) -> torch.Tensor:
        """float32 ``[patches of all, 3, frames, patch_size ** 2]``: what processors call pixel values."""
        num_frames = self._num_frames if any(picture.dim() == 4 for picture in pictures) else 1
        patches = torch.cat([self._cut(picture, num_frames) for picture in pictures])
        normed = patches.float().mul_(1 / 255).sub_(self._mean).div_(self._std)
        return normed.expand(-1, -1, self._num_frames, -1)

    def _cut(self, picture: torch.Tensor, num_frames: int) -> torch.Tensor:
        """``[patches, 3, num_frames, patch_size ** 2]``; what frames have that share no patch stands one by one."""
        frames = picture if picture.dim() == 4 else picture.unsqueeze(0)
        together = [torch.stack([cut(frame, self._spec) for frame in each], dim=2) for each in frames.split(num_frames)]
        return torch.cat(together).expand(-1, -1, num_frames, -1)

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        matrix = {"weight": weights["weight"].flatten(1)}
        self._apply = select(LINEAR, self._problem, self._context.platform).prepare(weights | matrix)
