"""Head norms, rotation and the cache write in one Triton launch.

Shapes: T tokens, H query heads, K key/value heads, D head_dim, R rotary_dim.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton.tile import SCALED_BY_HEAD, SCALED_BY_TOKEN, UNSCALED
from atom_kernels.mixers.cache_format import SMALLEST_SCALE
from atom_kernels.triton.support import wait_for_inputs

# What a token of zeros has for a scale.
_SMALLEST_SCALE = tl.constexpr(SMALLEST_SCALE)


@triton.jit
def prologue_kernel(
    q_ptr, k_ptr, v_ptr, q_out_ptr, k_cache_ptr, v_cache_ptr, key_scale_ptr, value_scale_ptr, slot_mapping_ptr,
    positions_ptr, cos_sin_ptr, q_norm_ptr, k_norm_ptr, norm_eps,
    q_stride, k_stride, v_stride, block_stride, token_stride, head_stride,
    scale_block_stride, scale_token_stride, scale_head_stride,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, INTERLEAVED: tl.constexpr, WRITE_Q: tl.constexpr, SCALES: tl.constexpr,
    LARGEST: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program a token and `BLOCK_H` heads; first those of queries (with WRITE_Q), then of keys with their values.

    ROTARY_DIM 0 rotates nothing; norm pointers that are None norm nothing. Queries go to q_out ``[T, H, D]``.
    SCALES: see `atom_kernels.attention.triton.tile`; each token's are computed and stored here.
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    num_q_parts: tl.constexpr = (NUM_HEADS + BLOCK_H - 1) // BLOCK_H if WRITE_Q else 0
    # Written before the step's first layer.
    cos, sin = load_angles(positions_ptr, cos_sin_ptr, token, ROTARY_DIM, BLOCK_D)
    slot = tl.load(slot_mapping_ptr + token)
    wait_for_inputs(DEPENDENT)
    if part < num_q_parts:
        heads = part * BLOCK_H + tl.arange(0, BLOCK_H)
        present = heads < NUM_HEADS
        q, q_partners = norm_and_rotate(
            q_ptr + token * q_stride, heads, present, q_norm_ptr, norm_eps, cos, sin,
            HEAD_DIM, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D,
        )  # fmt: skip
        rows = q_out_ptr + token * (NUM_HEADS * HEAD_DIM) + heads * HEAD_DIM
        store_halves(rows, q, q_partners, present, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D)
    else:
        if slot >= 0:
            heads = (part - num_q_parts) * BLOCK_H + tl.arange(0, BLOCK_H)
            present = heads < NUM_KV_HEADS
            k, k_partners = norm_and_rotate(
                k_ptr + token * k_stride, heads, present, k_norm_ptr, norm_eps, cos, sin,
                HEAD_DIM, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D,
            )  # fmt: skip
            columns = tl.arange(0, BLOCK_D)
            inside = present[:, None] & (columns < HEAD_DIM)[None, :]
            v = tl.load(v_ptr + token * v_stride + heads[:, None] * HEAD_DIM + columns[None, :], mask=inside, other=0.0)
            at = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * token_stride + heads * head_stride
            if LARGEST > 0.0:
                scale_at = (slot // BLOCK_SIZE) * scale_block_stride + (slot % BLOCK_SIZE) * scale_token_stride
                scale_at += heads * scale_head_stride
                largest = tl.maximum(largest_of_rows(k), largest_of_rows(k_partners))
                scale = scale_of_rows(largest, key_scale_ptr, scale_at, present, SCALES, LARGEST)
                k, k_partners = scaled(k, scale, SCALES, LARGEST), scaled(k_partners, scale, SCALES, LARGEST)
                scale = scale_of_rows(largest_of_rows(v), value_scale_ptr, scale_at, present, SCALES, LARGEST)
                v = scaled(v, scale, SCALES, LARGEST)
            store_halves(k_cache_ptr + at, k, k_partners, present, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D)
            v_at = v_cache_ptr + at[:, None] + columns[None, :]
            tl.store(v_at, v.to(v_cache_ptr.dtype.element_ty), mask=inside)


@triton.jit
def largest_of_rows(x):
    return tl.max(tl.abs(x.to(tl.float32)), axis=1)


@triton.jit
def scale_of_rows(largest, scale_ptr, at, present, SCALES: tl.constexpr, LARGEST: tl.constexpr):
    """Scales ``[H]`` that are, or go, where `at` says, for rows whose largest numbers are `largest`."""
    if SCALES == SCALED_BY_HEAD:
        return tl.load(scale_ptr + at, mask=present, other=1.0)
    elif SCALES == SCALED_BY_TOKEN:
        scale = token_scale(largest, LARGEST)
        tl.store(scale_ptr + at, scale, mask=present)
        return scale
    else:
        return tl.full(largest.shape, 1.0, tl.float32)


@triton.jit
def scaled(x, scale, SCALES: tl.constexpr, LARGEST: tl.constexpr):
    """Rows ``[H, D]`` as a float8 whose largest number is LARGEST keeps them under scales ``[H]``.

    Quotients are exact, as the contract's: a number between two codes must not become another.
    """
    x = x.to(tl.float32)
    if SCALES != UNSCALED:
        x = tl.div_rn(x, scale[:, None] + tl.zeros_like(x))
    return saturated(x, LARGEST)


@triton.jit
def token_scale(largest, LARGEST: tl.constexpr):
    """The scale that makes the `largest` number of a row the format's."""
    return tl.maximum(tl.div_rn(largest, LARGEST + tl.zeros_like(largest)), _SMALLEST_SCALE)


@triton.jit
def saturated(x, LARGEST: tl.constexpr):
    """`x` in float32, for a float8 whose largest number is LARGEST.

    The one up to 240 (fnuz) has no negative zero, and its code is no number: what would round to zero is zero here.
    """
    x = tl.minimum(tl.maximum(x.to(tl.float32), -LARGEST), LARGEST)
    if LARGEST == 240.0:
        x = tl.where(tl.abs(x) <= 2.0**-11, 0.0, x)
    return x


@triton.jit
def load_angles(positions_ptr, cos_sin_ptr, token, ROTARY_DIM: tl.constexpr, BLOCK_D: tl.constexpr):
    """Cosine and sine ``[BLOCK_D // 2]`` by which each pair of `halves` is turned."""
    pairs = tl.arange(0, BLOCK_D // 2)
    cos, sin = tl.full([BLOCK_D // 2], 1.0, tl.float32), tl.zeros([BLOCK_D // 2], tl.float32)
    if ROTARY_DIM > 0:
        half: tl.constexpr = ROTARY_DIM // 2
        angles = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * ROTARY_DIM + pairs
        cos = tl.load(angles, mask=pairs < half, other=1.0)
        sin = tl.load(angles + half, mask=pairs < half, other=0.0)
    return cos, sin


@triton.jit
def halves(ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_D: tl.constexpr):
    """A head's columns as two halves ``[BLOCK_D // 2]``: rotation turns what is at a place of one with the other's.

    Registers cannot be indexed, so that partners are read in places of their own.
    """
    pairs = tl.arange(0, BLOCK_D // 2)
    half: tl.constexpr = ROTARY_DIM // 2
    if INTERLEAVED:
        return 2 * pairs, 2 * pairs + 1
    elif ROTARY_DIM == BLOCK_D or ROTARY_DIM == 0:
        return pairs, pairs + BLOCK_D // 2
    else:
        # Columns that are not turned follow those that are.
        return tl.where(pairs < half, pairs, pairs + half), pairs + tl.where(pairs < half, half, BLOCK_D // 2)


@triton.jit
def norm_and_rotate(
    token_ptr, heads, present, norm_ptr, norm_eps, cos, sin,
    HEAD_STRIDE: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Heads of one token in `halves` ``[BLOCK_H, BLOCK_D // 2]``, rounded after the norm and again after the rotation.

    Args:
        present: heads ``[BLOCK_H]`` that there are; others are zeros.
    """
    first, second = halves(ROTARY_DIM, INTERLEAVED, BLOCK_D)
    rows = token_ptr + heads[:, None] * HEAD_STRIDE
    dtype: tl.constexpr = token_ptr.dtype.element_ty
    x = tl.load(rows + first[None, :], mask=present[:, None] & (first < HEAD_DIM)[None, :], other=0.0)
    y = tl.load(rows + second[None, :], mask=present[:, None] & (second < HEAD_DIM)[None, :], other=0.0)
    x, y = x.to(tl.float32), y.to(tl.float32)
    if norm_ptr is not None:
        scale = 1.0 / tl.sqrt(tl.sum(x * x + y * y, axis=1) / HEAD_DIM + norm_eps)
        x = _normed(x, scale, norm_ptr, first, HEAD_DIM, dtype)
        y = _normed(y, scale, norm_ptr, second, HEAD_DIM, dtype)
    if ROTARY_DIM > 0:
        x, y = x * cos[None, :] - y * sin[None, :], y * cos[None, :] + x * sin[None, :]
    return x.to(dtype), y.to(dtype)


@triton.jit
def _normed(x, scale, norm_ptr, columns, HEAD_DIM: tl.constexpr, dtype: tl.constexpr):
    weight = tl.load(norm_ptr + columns, mask=columns < HEAD_DIM, other=0.0).to(tl.float32)
    return (x * scale[:, None] * weight[None, :]).to(dtype).to(tl.float32)


@triton.jit
def store_halves(
    rows, x, y, present,
    HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Writes heads in `halves` to where their rows ``[BLOCK_H]`` begin."""
    first, second = halves(ROTARY_DIM, INTERLEAVED, BLOCK_D)
    dtype: tl.constexpr = rows.dtype.element_ty
    tl.store(rows[:, None] + first[None, :], x.to(dtype), mask=present[:, None] & (first < HEAD_DIM)[None, :])
    tl.store(rows[:, None] + second[None, :], y.to(dtype), mask=present[:, None] & (second < HEAD_DIM)[None, :])
