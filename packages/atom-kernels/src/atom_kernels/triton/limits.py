"""Makes launches fit: tiles that are being loaded lie in a processor's own memory, whose size depends on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from atom_kernels.platform import detect_platform


class Pipelined(Protocol):
    """A frozen configuration whose loop has `num_stages`."""

    @property
    def num_stages(self) -> int: ...


Config = TypeVar("Config", bound=Pipelined)

# The least length of a tile's side that a matrix instruction takes.
_LEAST_SIDE = 16


def fitting(config: Config, side: str, tile_bytes: Callable[[Config], int]) -> Config:
    """`config`, or the nearest one that fits this GPU: with fewer stages first, and then with a shorter tile.

    Args:
        side: the field to halve.
        tile_bytes: configuration -> bytes that one stage loads.
    """
    platform = detect_platform()
    # Triton holds the tile in use in registers on AMD, and in local memory on NVIDIA.
    spare = 1 if platform.vendor == "amd" else 0
    while (config.num_stages - spare) * tile_bytes(config) > platform.local_memory:
        length = getattr(config, side)
        if config.num_stages > 2:
            config = replace(config, num_stages=config.num_stages - 1)  # type: ignore[type-var]
        elif length > _LEAST_SIDE:
            config = replace(config, **{side: length // 2})  # type: ignore[type-var]
        else:
            break
    return config
