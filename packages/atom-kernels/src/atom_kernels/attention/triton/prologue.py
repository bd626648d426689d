"""Head norms, rotation and the cache write in one Triton launch.

Shapes: T tokens, H query heads, K key/value heads, D head_dim, R rotary_dim.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton.tile import SCALED_BY_HEAD, SCALED_BY_TOKEN
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
    columns = tl.arange(0, BLOCK_D)
    # Written before the step's first layer.
    cos, sin = load_angles(positions_ptr, cos_sin_ptr, token, ROTARY_DIM, INTERLEAVED, BLOCK_D)
    slot = tl.load(slot_mapping_ptr + token)
    wait_for_inputs(DEPENDENT)
    if part < num_q_parts:
        heads = part * BLOCK_H + tl.arange(0, BLOCK_H)
        inside = (heads < NUM_HEADS)[:, None] & (columns < HEAD_DIM)[None, :]
        x = norm_and_rotate(
            q_ptr + token * q_stride, heads, inside, q_norm_ptr, norm_eps, cos, sin,
            HEAD_DIM, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D,
        )  # fmt: skip
        out = token * (NUM_HEADS * HEAD_DIM) + heads[:, None] * HEAD_DIM + columns[None, :]
        tl.store(q_out_ptr + out, x.to(q_out_ptr.dtype.element_ty), mask=inside)
    else:
        if slot >= 0:
            heads = (part - num_q_parts) * BLOCK_H + tl.arange(0, BLOCK_H)
            inside = (heads < NUM_KV_HEADS)[:, None] & (columns < HEAD_DIM)[None, :]
            k = norm_and_rotate(
                k_ptr + token * k_stride, heads, inside, k_norm_ptr, norm_eps, cos, sin,
                HEAD_DIM, HEAD_DIM, ROTARY_DIM, INTERLEAVED, BLOCK_D,
            )  # fmt: skip
            v = tl.load(v_ptr + token * v_stride + heads[:, None] * HEAD_DIM + columns[None, :], mask=inside, other=0.0)
            at = (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * token_stride
            at += heads[:, None] * head_stride + columns[None, :]
            if LARGEST > 0.0:
                scale_at = (slot // BLOCK_SIZE) * scale_block_stride + (slot % BLOCK_SIZE) * scale_token_stride
                scale_at += heads * scale_head_stride
                k = scaled(k, key_scale_ptr, scale_at, heads < NUM_KV_HEADS, SCALES, LARGEST)
                v = scaled(v, value_scale_ptr, scale_at, heads < NUM_KV_HEADS, SCALES, LARGEST)
            tl.store(k_cache_ptr + at, k.to(k_cache_ptr.dtype.element_ty), mask=inside)
            tl.store(v_cache_ptr + at, v.to(v_cache_ptr.dtype.element_ty), mask=inside)


@triton.jit
def scaled(x, scale_ptr, at, present, SCALES: tl.constexpr, LARGEST: tl.constexpr):
    """Rows ``[H, D]`` as a float8 whose largest number is LARGEST keeps them; their scales are, or go, where `at` says.

    Quotients are exact, as the contract's: a number between two codes must not become another.
    """
    x = x.to(tl.float32)
    if SCALES == SCALED_BY_HEAD:
        x = tl.div_rn(x, tl.load(scale_ptr + at, mask=present, other=1.0)[:, None] + tl.zeros_like(x))
    elif SCALES == SCALED_BY_TOKEN:
        scale = token_scale(tl.max(tl.abs(x), axis=1), LARGEST)
        tl.store(scale_ptr + at, scale, mask=present)
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
def load_angles(
    positions_ptr, cos_sin_ptr, token, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_D: tl.constexpr
):  # fmt: skip
    """Cosine and signed sine ``[BLOCK_D]`` by which each element of a head and its partner are turned."""
    columns = tl.arange(0, BLOCK_D)
    cos, sin = tl.full([BLOCK_D], 1.0, tl.float32), tl.zeros([BLOCK_D], tl.float32)
    if ROTARY_DIM > 0:
        half: tl.constexpr = ROTARY_DIM // 2
        turned = columns < ROTARY_DIM
        angle = columns // 2 if INTERLEAVED else columns % half
        first = columns % 2 == 0 if INTERLEAVED else columns < half
        angles = cos_sin_ptr + tl.load(positions_ptr + token).to(tl.int64) * ROTARY_DIM + angle
        cos = tl.load(angles, mask=turned, other=1.0)
        sin = tl.load(angles + half, mask=turned, other=0.0)
        sin = tl.where(first, -sin, sin)
    return cos, sin


@triton.jit
def norm_and_rotate(
    token_ptr, heads, inside, norm_ptr, norm_eps, cos, sin,
    HEAD_STRIDE: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, INTERLEAVED: tl.constexpr,
    BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Heads ``[BLOCK_H, BLOCK_D]`` of one token, rounded after the norm and again after the rotation."""
    columns = tl.arange(0, BLOCK_D)
    rows = token_ptr + heads[:, None] * HEAD_STRIDE
    dtype = token_ptr.dtype.element_ty
    raw = tl.load(rows + columns[None, :], mask=inside, other=0.0)
    x = raw.to(tl.float32)
    if norm_ptr is not None:
        scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=1) / HEAD_DIM + norm_eps)
        weight = tl.load(norm_ptr + columns, mask=columns < HEAD_DIM, other=0.0).to(tl.float32)
        x = (x * scale[:, None] * weight[None, :]).to(dtype).to(tl.float32)
    if ROTARY_DIM > 0:
        half: tl.constexpr = ROTARY_DIM // 2
        turned = columns < ROTARY_DIM
        partner = columns ^ 1 if INTERLEAVED else tl.where(columns < half, columns + half, columns - half)
        # The partner is read and normed again: registers cannot be indexed, and the line is in the cache.
        other = tl.load(rows + partner[None, :], mask=inside & turned[None, :], other=0.0).to(tl.float32)
        if norm_ptr is not None:
            weight = tl.load(norm_ptr + partner, mask=turned, other=0.0).to(tl.float32)
            other = (other * scale[:, None] * weight[None, :]).to(dtype).to(tl.float32)
        x = tl.where(turned[None, :], x * cos[None, :] + other * sin[None, :], x)
    return x.to(dtype)
