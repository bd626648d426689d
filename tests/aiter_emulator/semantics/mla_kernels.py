"""Which MLA decode kernels there are, and where 16 heads stand for more.

A persistent kernel for 16 heads computes 32 to 128 of them as that many sequences of 16 (`fold`): metadata and kernel
must agree on it.
"""

from __future__ import annotations

import torch

from . import machine
from .checks import refuse_unless

QK_DIM, V_DIM = 576, 512


def fold(release: str, heads: int, queries: int, q: torch.dtype, kv: torch.dtype) -> int:
    """How many sequences of the persistent kernel make one of the caller's; AssertionError where there is no kernel."""
    fp8, bf16 = machine.fp8(), torch.bfloat16
    if heads == 16:
        return 1
    if release == "pypi":
        if heads == 128 and kv == fp8:
            return 1
        assert heads in range(32, 513, 16) and queries == 1, f"nhead={heads} and max_seqlen_q={queries} not supported"  # noqa: PT018
        return heads // 16
    small, wide = q == kv == fp8, q == kv == bf16
    if machine.arch() == "gfx942":
        native = (small and (heads == 128 or (heads == 64 and queries == 1))) or (wide and heads == 8 and queries == 2)
    else:
        native = wide or (
            small and (heads in (32, 64, 128) or (heads, queries) == (8, 4) or (heads == 96 and queries <= 6))
        )
    if native:
        return 1
    assert heads in range(32, 129, 16), f"nhead={heads} and max_seqlen_q={queries} not supported"
    return heads // 16


def metadata_fold(release: str, heads: int, queries: int, q: torch.dtype, kv: torch.dtype) -> int:
    """The same as the metadata kernel sees it: PyPI's knows no types, and never folds 128 heads."""
    if release == "pypi":
        folded = heads not in (16, 128) and heads % 16 == 0 and heads < 128
        refuse_unless(
            folded or heads in (16, 128), f"only supports #heads in [16, 128] or 16*N with N in [2, 8), not {heads}"
        )
        return heads // 16 if folded else 1
    try:
        return fold(release, heads, queries, q, kv)
    except AssertionError as error:
        refuse_unless(False, str(error))
        raise


def refuse_without_decode_kernel(
    release: str, heads: int, queries: int, q: torch.dtype, kv: torch.dtype, persistent: bool, lse: bool
) -> None:
    """The kernels that the host code finds: in `hsa/*/mla/mla_asm.csv` (git), in asm_mla.cu itself (PyPI)."""
    fp8, bf16 = machine.fp8(), torch.bfloat16
    refuse_unless(q in (bf16, fp8), f"unsupport Q dtype: {q}")
    refuse_unless(kv in (bf16, fp8), f"unsupport KV dtype: {kv}")
    table = _pypi if release == "pypi" else _git
    kinds = {(bf16, bf16): "a16w16", (bf16, fp8): "a16w8", (fp8, fp8): "a8w8"}
    kind = kinds.get((q, kv))
    wanted = f"q_type:{q} kv_type:{kv} gqa:{heads} ps:{int(persistent)} qseqlen:{queries} lse:{int(lse)}"
    refuse_unless(
        kind is not None and table(kind, heads, queries, persistent), f"cannot get heuristic kernel! {wanted}"
    )
    refuse_unless(not lse or _writes_lse(kind, heads, queries, persistent), f"cannot get heuristic kernel! {wanted}")


def _pypi(kind: str, heads: int, queries: int, persistent: bool) -> bool:
    if heads == 128:
        return kind == "a8w8" or (kind == "a16w16" and not persistent)
    if heads != 16:
        return False
    if kind == "a16w8":
        return persistent and queries <= 4
    return queries <= 4 or (kind == "a16w16" and not persistent)


def _git(kind: str, heads: int, queries: int, persistent: bool) -> bool:
    mi350 = machine.arch() == "gfx950"
    if kind == "a16w8":
        return persistent and heads == 16 and queries <= 4
    if kind == "a16w16":
        if not persistent:
            return heads in (16, 32, 64, 128) or (heads == 8 and queries <= (2 if mi350 else 1))
        if heads == 8:
            return queries == 2 if not mi350 else (heads * queries) % 64 == 0
        return (heads == 16 and (queries <= 4 or (mi350 and queries % 4 == 0))) or (mi350 and heads > 16)
    if not persistent:
        return (heads == 16 and queries <= 4) or heads == 128 or (heads == 8 and queries == 1)
    if heads == 32:
        return mi350 and queries in (2, 3, 4)
    if heads == 64:
        return queries == 1
    return (heads == 16 and queries <= 4) or heads == 128 or (mi350 and (heads, queries) == (8, 4))


def _writes_lse(kind: str, heads: int, queries: int, persistent: bool) -> bool:
    if machine.arch() == "gfx942":
        return (kind, heads, queries, persistent) == ("a8w8", 64, 1, True)
    if kind == "a16w16":
        return heads in (16, 32, 64) if persistent else (heads, queries) == (64, 1)
    return persistent and (heads, queries) in {(16, 1), (16, 4), (64, 1), (32, 2), (32, 4), (8, 4)}
