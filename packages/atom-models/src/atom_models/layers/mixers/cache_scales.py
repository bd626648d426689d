"""The scales of an fp8 KV cache as an attention layer loads them: one number for all heads, or one for each.

Latents have one, which every rank holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from atom_kernels.mixers import CacheFormat, select_mixer
from atom_kernels.mixers.cache_format import HEAD_SCALES, NO_SCALES
from atom_kernels.protocols import SINGLE_RANK
from atom_models.checkpoint import CheckpointError
from atom_models.layers.mixers.mixer import CACHE_SCALES, Mixer, planned_host
from atom_models.quantization import ExpectedWeight

if TYPE_CHECKING:
    from atom_kernels.mixers import MixerProblem
    from atom_kernels.protocols import Collectives
    from atom_models.build_context import BuildContext
    from atom_models.quantization.published import StoredScale

Problem = TypeVar("Problem", bound="MixerProblem")


class CacheScaleWeights:
    """Loads the scales of one layer.

    Args:
        stored: the tensor of each weight of the layer's problem that is such a scale.
        num_heads: heads of keys and values on this rank.
        ranks: the ranks that share the heads.
        factor: what scales are multiplied by: checkpoints mean a format with larger numbers than some GPUs have.
    """

    def __init__(
        self,
        stored: Mapping[str, StoredScale],
        num_heads: int,
        ranks: Collectives,
        device: torch.device | str,
        *,
        factor: float = 1.0,
    ) -> None:
        self._names = {slot: scale.name for slot, scale in stored.items()}
        self._shapes = {scale.name: scale.header.shape for scale in stored.values()}
        self._num_heads, self._ranks, self._device, self._factor = num_heads, ranks, device, factor
        self._loaded: dict[str, torch.Tensor] = {}

    def expected(self) -> dict[str, ExpectedWeight]:
        return {name: ExpectedWeight(shape, torch.float32, dummy=1.0) for name, shape in self._shapes.items()}

    def load(self, name: str, tensor: torch.Tensor) -> None:
        """Takes this rank's part of a scale.

        Raises:
            CheckpointError: it is no positive number, or there are too many or too few.
        """
        scale = tensor.float().flatten()
        if not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise CheckpointError(f"the weight {name} has {scale.min().item()}: scales of a KV cache are above 0")
        ranks, heads = self._ranks, self._num_heads
        if len(scale) == 1:
            scale = scale.expand(heads)
        elif len(scale) == heads * ranks.size or (heads == 1 and ranks.size % len(scale) == 0):
            first = ranks.rank * len(scale) // ranks.size
            scale = scale[first : first + heads]
        else:
            raise CheckpointError(
                f"the weight {name} has {len(scale)} scales; the KV cache takes one, or {heads} for each of "
                f"{ranks.size} ranks"
            )
        self._loaded[name] = (scale * self._factor).to(self._device).contiguous()

    def take(self) -> dict[str, torch.Tensor]:
        """The scales by the problem's names for them."""
        loaded, self._loaded = self._loaded, {}
        return {slot: loaded[name] for slot, name in self._names.items()}


def needs_cache_scales(layer: Mixer) -> bool:
    """Whether a layer caches numbers in float8 that are cut off unless its checkpoint brings scales."""
    cache = layer.problem.cache
    return cache.is_float8 and cache.scales == NO_SCALES


def with_cache_scales(
    problem: Problem, attention: str, context: BuildContext
) -> tuple[Problem, CacheScaleWeights | None]:
    """The problem over a cache with the checkpoint's scales, where it has them and a kernel here reads them.

    Args:
        attention: the name of the attention block in the checkpoint.
    """
    cache = problem.cache
    if not cache.is_float8 or cache.scales != NO_SCALES or context.mixer_host is not planned_host:
        return problem, None
    found = context.quantization.cache_scales(attention)
    if found is None:
        return problem, None
    scaled: Any = replace(cast("Any", problem), cache=CacheFormat(cache.dtype, HEAD_SCALES))
    if not select_mixer(scaled, context.platform).has_kernel:
        return problem, None
    slots = {slot: spec.shape[0] for slot, spec in scaled.weights.items() if slot in CACHE_SCALES}
    stored = {slot: found.value if slot == "value_scale" else found.key for slot in slots}
    ranks = SINGLE_RANK if "latent_scale" in slots else context.collectives
    # Numbers up to 448 in the checkpoint's terms are up to 224 of the 240 that AMD's older format has.
    factor = 2.0 if cache.dtype == "float8_e4m3fnuz" else 1.0
    return scaled, CacheScaleWeights(stored, min(slots.values()), ranks, context.device, factor=factor)
