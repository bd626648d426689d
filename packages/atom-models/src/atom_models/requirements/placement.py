"""Whether a model fits on so many accelerators, and how long and how many requests then fit beside it."""

from __future__ import annotations

from dataclasses import dataclass

from atom_kernels.protocols import CacheFormat
from atom_models.requirements.accelerators import Accelerator
from atom_models.requirements.requirements import ModelRequirements, RankShare

_BFLOAT16 = CacheFormat("bfloat16")
DEVICE_COUNTS = (1, 2, 4, 8)
# The rest is for activations, captured graphs and the runtime.
MEMORY_UTILIZATION = 0.9


@dataclass(frozen=True)
class Placement:
    """A model on tensor-parallel accelerators.

    Attributes:
        accelerator, num_devices: what it runs on.
        weight_bytes: bytes of weights on each device.
        cache_bytes: left for the cache on each device; 0 or less where the weights do not fit.
        share: what each device holds.
        longest_request: tokens of the longest request that fits alone, at most the model's context.
    """

    accelerator: Accelerator
    num_devices: int
    weight_format: str
    cache: CacheFormat
    weight_bytes: int
    cache_bytes: int
    longest_request: int
    needs: ModelRequirements
    share: RankShare

    @property
    def fits(self) -> bool:
        """Whether weights and a request of some use fit."""
        return self.longest_request >= min(1024, self.needs.max_model_len)

    def bytes_of_request(self, context: int) -> int:
        """What a request of `context` tokens takes on a device; 0 where layers keep nothing."""
        return self.share.kv_bytes(context, self.cache, self.accelerator.platform)

    def num_requests(self, context: int) -> int:
        """Requests of `context` tokens that fit at once, of a model whose layers keep something.

        They have what states behind cached prefixes leave.
        """
        left = self.cache_bytes - self.share.snapshot_bytes(self.cache_bytes)
        return max(0, left) // self.bytes_of_request(context) * self.share.num_engines


def place(
    needs: ModelRequirements,
    accelerator: Accelerator,
    num_devices: int,
    *,
    weight_format: str,
    cache: CacheFormat = _BFLOAT16,
    utilization: float = MEMORY_UTILIZATION,
    image_cache_bytes: int = 0,
) -> Placement | None:
    """The model on these devices; None where they cannot share it evenly.

    Args:
        image_cache_bytes: what each of them keeps free for what was made of pictures.
    """
    share = needs.on_rank(num_devices)
    if share is None:
        return None
    platform = accelerator.platform
    weights = share.weight_bytes[weight_format] + share.copied_bytes(platform)
    room = int(accelerator.memory_bytes * utilization) - weights - image_cache_bytes
    left = room - share.snapshot_bytes(room)

    def fits(num_tokens: int) -> bool:
        return share.kv_bytes(num_tokens, cache, platform) <= left

    low, high = 0, needs.max_model_len
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return Placement(accelerator, num_devices, weight_format, cache, weights, room, low, needs, share)
