"""`CacheFormat`: how numbers are cached, where the scales of narrow ones are kept, and what users call it."""

from __future__ import annotations

from dataclasses import dataclass

from atom_kernels.protocols.kv_cache import DTYPE_BYTES, CacheTensor

NO_SCALES = "none"
HEAD_SCALES = "head"
TOKEN_SCALES = "token_head"
FLOAT8_DTYPES = ("float8_e4m3fn", "float8_e4m3fnuz")
ALL_SCALES = (NO_SCALES, HEAD_SCALES, TOKEN_SCALES)
_TOKEN_SUFFIX = "_per_token_head"
# What users call the formats, see `CacheFormat.asked`. There is no other list.
CACHE_DTYPES = ("auto", "bf16", "fp8", f"fp8{_TOKEN_SUFFIX}")


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
        if self.scales != NO_SCALES and not self.is_float8:
            raise ValueError(f"a cache of {self.dtype} has no scales; {' and '.join(FLOAT8_DTYPES)} may have them")

    @classmethod
    def asked(cls, word: str, dtype: str, float8: str) -> CacheFormat:
        """The format that users call `word`.

        Args:
            word: one of `CACHE_DTYPES`; "auto" is `dtype`, "fp8" is `float8`, and "fp8_per_token_head" the same with a
                scale for each token and head.
            dtype: the model's dtype.
            float8: the platform's own kind of float8.

        Raises:
            ValueError: `word` is another word.
        """
        if word not in CACHE_DTYPES:
            raise ValueError(f"kv_cache_dtype is {word!r}; allowed are {', '.join(CACHE_DTYPES)}")
        scales = TOKEN_SCALES if word.endswith(_TOKEN_SUFFIX) else NO_SCALES
        return cls({"auto": dtype, "bf16": "bfloat16"}.get(word, float8), scales)

    @property
    def is_float8(self) -> bool:
        return self.dtype in FLOAT8_DTYPES

    @property
    def name(self) -> str:
        """As reports show it. Scales of heads belong to a layer's weights, and are no part of the name."""
        return self.dtype + _TOKEN_SUFFIX if self.scales == TOKEN_SCALES else self.dtype

    def tensors(self, shapes: dict[str, tuple[int, ...]]) -> tuple[CacheTensor, ...]:
        """The tensors of a block: those of `shapes`, heads' elements last, and then their scales if these are in it."""
        tensors = [CacheTensor(name, shape, self.dtype) for name, shape in shapes.items()]
        if self.scales == TOKEN_SCALES:
            tensors += [CacheTensor(f"{name}_scale", shape[:-1], "float32") for name, shape in shapes.items()]
        return tuple(tensors)
