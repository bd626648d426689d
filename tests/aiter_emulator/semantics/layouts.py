"""The layouts of AITER's KV caches: pages of each become tokens, ``[tokens, heads, head_dim]`` in float32."""

from __future__ import annotations

from torch import Tensor

from .checks import detect_unless


def vector_width(cache: Tensor) -> int:
    """Elements of 16 bytes: the x of the layouts."""
    return 16 // cache.element_size()


def check_x_packed_keys(name: str, cache: Tensor, head_dim: int) -> None:
    """Keys are ``[pages, heads, head_dim / x, page_size, x]``, a page of a head without holes."""
    x = vector_width(cache)
    detect_unless(
        cache.dim() == 5 and cache.shape[2] * x == head_dim and cache.shape[4] == x,
        f"{name} has shape {tuple(cache.shape)}, not [pages, heads, {head_dim // x}, page_size, {x}]",
    )
    _check_dense_pages(name, cache)


def check_values(name: str, cache: Tensor, keys: Tensor, head_dim: int) -> None:
    """Values are ``[pages, heads, head_dim, page_size]``, or ``[pages, heads, page_size / x, head_dim, x]``."""
    pages, heads, page_size, x = keys.shape[0], keys.shape[1], keys.shape[3], vector_width(cache)
    wanted = (heads, page_size // x, head_dim, x) if cache.dim() == 5 else (heads, head_dim, page_size)
    detect_unless(
        cache.dim() in (4, 5) and tuple(cache.shape) == (pages, *wanted),
        f"{name} has shape {tuple(cache.shape)}, not {(pages, *wanted)}",
    )
    _check_dense_pages(name, cache)


def check_shuffled_values(name: str, cache: Tensor, keys: Tensor, head_dim: int) -> None:
    """Values are ``[pages, heads, page_size / x, head_dim, x]`` and nothing else."""
    detect_unless(cache.dim() == 5, f"{name} has shape {tuple(cache.shape)}; the kernel reads the shuffled layout")
    check_values(name, cache, keys, head_dim)


def check_same_page_strides(keys: Tensor, values: Tensor) -> None:
    """Only the keys' strides of pages and heads reach the kernel."""
    for dimension, what in enumerate(("pages", "heads")):
        detect_unless(
            keys.stride(dimension) == values.stride(dimension),
            f"keys and values have other strides between {what}: {keys.stride(dimension)}, {values.stride(dimension)}",
        )


def tokens_of_x_packed_keys(pages: Tensor) -> Tensor:
    """``[n, heads, head_dim / x, page_size, x]``"""
    n, heads, pieces, page_size, x = pages.shape
    return pages.float().permute(0, 3, 1, 2, 4).reshape(n * page_size, heads, pieces * x)


def tokens_of_values(pages: Tensor) -> Tensor:
    """``[n, heads, head_dim, page_size]``, or shuffled ``[n, heads, page_size / x, head_dim, x]``"""
    if pages.dim() == 4:
        n, heads, head_dim, page_size = pages.shape
        return pages.float().permute(0, 3, 1, 2).reshape(n * page_size, heads, head_dim)
    n, heads, pieces, head_dim, x = pages.shape
    return pages.float().permute(0, 2, 4, 1, 3).reshape(n * pieces * x, heads, head_dim)


def tokens_of_rows(pages: Tensor) -> Tensor:
    """``[n, page_size, heads, head_dim]``"""
    return pages.float().reshape(-1, pages.shape[-2], pages.shape[-1])


def scales_of_tokens(pages: Tensor) -> Tensor:
    """``[n, heads, page_size]`` to ``[tokens, heads, 1]``"""
    return pages.float().permute(0, 2, 1).reshape(-1, pages.shape[1], 1)


def _check_dense_pages(name: str, cache: Tensor) -> None:
    page = cache[0, 0] if cache.shape[0] else cache
    detect_unless(page.is_contiguous(), f"{name}: a head's page has strides {page.stride()}, it must have no holes")
