"""Weights in the order in which matrix instructions read them, and which matrices hold one.

Kernels cannot tell a shuffled weight from a plain one. The emulator can: it knows the content of every matrix that
`shuffle_weight` returned, so that copies are recognized although they lose the attribute `is_shuffled`.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .checks import detect_unless, refuse_unless

Layout = tuple[int, int]

# The digest of every matrix that was shuffled, with its layout and whether it is one of int4. Matrices that shuffling
# leaves as they are (zeros) are not here: they are fine in both orders.
_shuffled: dict[bytes, tuple[Layout, bool]] = {}
_digests: WeakIdKeyDictionary = WeakIdKeyDictionary()


def shuffle_weight(x: Tensor, layout: Layout = (16, 16), use_int4: bool = False, pad_k_to: int = 0) -> Tensor:
    """Tiles of ``IN x 2*IK`` elements become contiguous, their 16-byte pieces column after column.

    Args:
        x: ``[..., N, K]``; N is a multiple of IN and K of 2*IK, else AssertionError.
    """
    detect_unless(not holds_shuffled(x), "the weight is shuffled already")
    refuse_unless(pad_k_to >= 0, f"pad_k_to must not be negative, got {pad_k_to}")
    original, dtype = x.shape[-1], x.dtype
    if dtype == getattr(torch, "float4_e2m1fn_x2", None):
        x = x.view(torch.uint8)
    if pad_k_to:
        x = torch.nn.functional.pad(x, (0, -original % pad_k_to))
    shuffled = reorder(x, layout, use_int4)
    for plain, other in zip(_matrices(x), _matrices(shuffled), strict=True):
        if not torch.equal(_bytes(plain), _bytes(other)):
            _shuffled[_digest(other)] = layout, use_int4
    shuffled = shuffled.view(dtype)
    shuffled.is_shuffled = True
    if pad_k_to:
        shuffled.aiter_original_k, shuffled.aiter_padded_k = original, x.shape[-1]
    return shuffled


def reorder(x: Tensor, layout: Layout = (16, 16), use_int4: bool = False) -> Tensor:
    """The order alone, nothing remembered."""
    rows, columns = layout
    piece = 32 if use_int4 else 16 // x.element_size()
    assert x.shape[-2] % rows == 0, f"{x.shape[-2]} rows are no multiple of {rows}"
    assert x.shape[-1] % (2 * columns) == 0, f"{x.shape[-1]} columns are no multiple of {2 * columns}"
    tile_shape = x.shape[-2] // rows, rows, x.shape[-1] // (2 * columns), 2 * columns // piece, piece
    tiles = x.view(-1, *tile_shape)
    return tiles.permute(0, 1, 3, 4, 2, 5).contiguous().view(x.shape)


def unshuffled(x: Tensor, layout: Layout = (16, 16), use_int4: bool = False) -> Tensor:
    """The plain order of a shuffled weight."""
    rows, columns = layout
    piece = 32 if use_int4 else 16 // x.element_size()
    tiles = x.contiguous().view(
        -1, x.shape[-2] // rows, x.shape[-1] // (2 * columns), 2 * columns // piece, rows, piece
    )
    return tiles.permute(0, 1, 4, 2, 3, 5).contiguous().view(x.shape)


def holds_shuffled(x: Tensor) -> bool:
    """Whether any matrix ``[N, K]`` of `x` is one that `shuffle_weight` made."""
    return any(digest in _shuffled for digest in _matrix_digests(x))


def require_plain(name: str, x: Tensor) -> None:
    """For kernels that read rows one after another."""
    detect_unless(not holds_shuffled(x), f"{name} is shuffled, the kernel reads it as it is")


def require_shuffled(name: str, x: Tensor, layout: Layout = (16, 16), use_int4: bool = False) -> None:
    """For kernels that read tiles; a matrix that the order does not change is fine."""
    detect_unless(x.is_contiguous(), f"{name} is shuffled and must be contiguous")
    for digest, matrix in zip(_matrix_digests(x), _matrices(x), strict=True):
        if _shuffled.get(digest) != (layout, use_int4):
            same = torch.equal(_bytes(matrix), _bytes(unshuffled(matrix, layout, use_int4)))
            detect_unless(same, f"{name} is not shuffled with {layout}, the kernel reads it so")


def _matrix_digests(x: Tensor) -> list[bytes]:
    if x.dim() < 2:
        return []
    version = None if x.is_inference() else x._version
    key = (version, x.data_ptr(), x.shape, x.stride())
    known = _digests.get(x)
    if known is None or version is None or known[0] != key:
        known = _digests[x] = (key, [_digest(matrix) for matrix in _matrices(x)])
    return known[1]


def _matrices(x: Tensor) -> list[Tensor]:
    return list(x.detach().reshape(-1, *x.shape[-2:]))


def _bytes(matrix: Tensor) -> Tensor:
    return matrix.contiguous().view(torch.uint8)


def _digest(matrix: Tensor) -> bytes:
    return hashlib.blake2b(_bytes(matrix).numpy().tobytes(), digest_size=16).digest()
