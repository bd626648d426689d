"""AITER's `flash_attn_varlen_func`: requests one after the other, their keys and values in rows of tokens."""

from __future__ import annotations

from typing import Any

from atom_kernels.aiter.library import library


def bind_flash(scale: float, *, has_sinks: bool = False, **rules: Any) -> Any:
    """``(q, k, v, first rows of q, of k, most queries, most keys, out[, sinks])``, causal from the last query back.

    Args:
        scale: factor on ``q @ k``.
        has_sinks: float32 ``[num_heads]`` are given at each call.
        rules: a window, a soft cap, by AITER's names.
    """
    return library().bind(
        "flash_attn_varlen_func",
        "q", "k", "v", "cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "out",
        *(("sink_ptr",) if has_sinks else ()),
        softmax_scale=scale,
        causal=True,
        return_lse=False,
        **rules,
    )  # fmt: skip
