"""`CacheFormat`: how numbers are cached, and where the scales of narrow ones are kept. Torch-free at import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atom_kernels.protocols.kv_cache import DTYPE_BYTES, CacheTensor

if TYPE_CHECKING:
    import torch

NO_SCALES = "none"
HEAD_SCALES = "head"
TOKEN_SCALES = "token_head"
FLOAT8_DTYPES = ("float8_e4m3fn", "float8_e4m3fnuz")
# A token and head of zeros gets this scale.
SMALLEST_SCALE = 1e-6
ALL_SCALES = (NO_SCALES, HEAD_SCALES, TOKEN_SCALES)
_TOKEN_SUFFIX = "_per_token_head"


@dataclass(frozen=True)
class CacheFormat:
    """The number format of one layer's cache. A number is what is stored times its scale.

    Attributes:
        dtype: the dtype of what is stored, by torch name; float8 saturates.
        scales: ``"none"``: the scale is 1. ``"head"``: the layer has one for each cached head, which come with its
            weights. ``"token_head"``: each token and head has one of its own, which lies beside it in the page.
    """

    dtype: str
    scales: str = NO_SCALES

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"kv_cache_dtype is {self.dtype!r}; give one of {', '.join(DTYPE_BYTES)}")
        if self.scales not in ALL_SCALES:
            raise ValueError(f"CacheFormat.scales is {self.scales!r}; give one of {', '.join(ALL_SCALES)}")
        if self.scales != NO_SCALES and self.dtype not in FLOAT8_DTYPES:
            raise ValueError(f"a cache of {self.dtype} has no scales; {' and '.join(FLOAT8_DTYPES)} may have them")

    @classmethod
    def named(cls, name: str) -> CacheFormat:
        """The format that configurations call `name`: a dtype, or one with ``_per_token_head`` behind it."""
        dtype = name.removesuffix(_TOKEN_SUFFIX)
        return cls(dtype, NO_SCALES if dtype == name else TOKEN_SCALES)

    @property
    def name(self) -> str:
        """As `named` takes it. Scales of heads belong to a layer's weights, and are no part of the name."""
        return self.dtype + _TOKEN_SUFFIX if self.scales == TOKEN_SCALES else self.dtype

    def tensors(self, shapes: dict[str, tuple[int, ...]]) -> tuple[CacheTensor, ...]:
        """The tensors of a block: those of `shapes`, heads' elements last, and then their scales if these are in it."""
        tensors = [CacheTensor(name, shape, self.dtype) for name, shape in shapes.items()]
        if self.scales == TOKEN_SCALES:
            tensors += [CacheTensor(f"{name}_scale", shape[:-1], "float32") for name, shape in shapes.items()]
        return tuple(tensors)


def token_scales(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 ``[..., 1]``: makes the largest number of each row the largest of `dtype`."""
    import torch

    largest = x.float().abs().amax(-1, keepdim=True)
    return (largest / torch.finfo(dtype).max).clamp(min=SMALLEST_SCALE)
