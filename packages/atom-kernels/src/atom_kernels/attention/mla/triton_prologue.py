"""The norm of latents, rotation and the cache write of latent attention in one Triton launch.

Shapes: T tokens, H heads, C kv_lora_rank, E qk_rope_head_dim.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton.prologue import (
    load_angles,
    norm_and_rotate,
    saturated,
    store_halves,
    token_scale,
)
from atom_kernels.attention.triton.tile import SCALED_BY_HEAD, SCALED_BY_TOKEN
from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def latent_prologue_kernel(
    q_ptr, kv_ptr, q_out_ptr, cache_ptr, scale_ptr, slot_mapping_ptr, positions_ptr, cos_sin_ptr, norm_ptr, norm_eps,
    q_stride, kv_stride, block_stride, token_stride, scale_block_stride, scale_token_stride,
    NUM_HEADS: tl.constexpr, RANK: tl.constexpr, NOPE_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, OUT_DIM: tl.constexpr,
    ROTATE: tl.constexpr, INTERLEAVED: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SCALES: tl.constexpr, LARGEST: tl.constexpr,
    BLOCK_H: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_E: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One program a token and `BLOCK_H` heads, whose rotary parts go to q_out ``[T, H, OUT_DIM + E]``, at their ends.

    The last program of a token writes its latent and key to their slot.
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    num_parts: tl.constexpr = (NUM_HEADS + BLOCK_H - 1) // BLOCK_H
    rotary_dim: tl.constexpr = ROPE_DIM if ROTATE else 0
    # Written before the step's first layer.
    cos, sin = load_angles(positions_ptr, cos_sin_ptr, token, rotary_dim, BLOCK_E)
    slot = tl.load(slot_mapping_ptr + token)
    wait_for_inputs(DEPENDENT)
    if part < num_parts:
        heads = part * BLOCK_H + tl.arange(0, BLOCK_H)
        q, q_partners = norm_and_rotate(
            q_ptr + token * q_stride + NOPE_DIM, heads, heads < NUM_HEADS, None, norm_eps, cos, sin,
            NOPE_DIM + ROPE_DIM, ROPE_DIM, rotary_dim, INTERLEAVED, BLOCK_E,
        )  # fmt: skip
        rows = q_out_ptr + (token * NUM_HEADS + heads) * (OUT_DIM + ROPE_DIM) + OUT_DIM
        store_halves(rows, q, q_partners, heads < NUM_HEADS, ROPE_DIM, rotary_dim, INTERLEAVED, BLOCK_E)
    else:
        if slot >= 0:
            row = cache_ptr + (slot // BLOCK_SIZE) * block_stride + (slot % BLOCK_SIZE) * token_stride
            columns = tl.arange(0, BLOCK_C)
            latent = tl.load(kv_ptr + token * kv_stride + columns, mask=columns < RANK, other=0.0)
            if norm_ptr is not None:
                x = latent.to(tl.float32)
                weight = tl.load(norm_ptr + columns, mask=columns < RANK, other=0.0).to(tl.float32)
                latent = (x / tl.sqrt(tl.sum(x * x, axis=0) / RANK + norm_eps) * weight).to(latent.dtype)
            one = tl.arange(0, 1)
            key, partners = norm_and_rotate(
                kv_ptr + token * kv_stride + RANK, one, one == 0, None, norm_eps, cos, sin,
                ROPE_DIM, ROPE_DIM, rotary_dim, INTERLEAVED, BLOCK_E,
            )  # fmt: skip
            if LARGEST > 0.0:
                latent, key, partners = latent.to(tl.float32), key.to(tl.float32), partners.to(tl.float32)
                scale = 1.0
                if SCALES == SCALED_BY_HEAD:
                    scale = tl.load(scale_ptr)
                elif SCALES == SCALED_BY_TOKEN:
                    # Absent elements are zeros.
                    largest = tl.maximum(tl.max(tl.abs(key)), tl.max(tl.abs(partners)))
                    scale = token_scale(tl.maximum(tl.max(tl.abs(latent)), largest), LARGEST)
                    at = (slot // BLOCK_SIZE) * scale_block_stride + (slot % BLOCK_SIZE) * scale_token_stride
                    tl.store(scale_ptr + at, scale)
                latent = saturated(tl.div_rn(latent, scale + tl.zeros_like(latent)), LARGEST)
                key = saturated(tl.div_rn(key, scale + tl.zeros_like(key)), LARGEST)
                partners = saturated(tl.div_rn(partners, scale + tl.zeros_like(partners)), LARGEST)
            tl.store(row + columns, latent.to(cache_ptr.dtype.element_ty), mask=columns < RANK)
            store_halves(row + RANK + one, key, partners, one == 0, ROPE_DIM, rotary_dim, INTERLEAVED, BLOCK_E)
