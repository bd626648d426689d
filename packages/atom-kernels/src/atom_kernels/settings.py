"""Every environment variable that this package reads, each behind one function."""

from __future__ import annotations

import os
from pathlib import Path

PREFIX = "ATOM_"


def native_disabled() -> bool:
    """Whether ``ATOM_DISABLE_NATIVE`` asks for torch operators only (``0``, ``false`` and empty mean no)."""
    return _is_asked_for("ATOM_DISABLE_NATIVE")


def native_compiler() -> str:
    """The C compiler for the native kernels: ``CC``, or ``cc``."""
    return os.environ.get("CC", "").strip() or "cc"


def native_cache_dir() -> Path:
    """Where C kernels are kept: ``native`` in ``ATOM_CACHE_DIR``, ``$XDG_CACHE_HOME/atom`` or ``~/.cache/atom``."""
    own = os.environ.get("ATOM_CACHE_DIR", "").strip()
    if own:
        return Path(own).expanduser() / "native"
    root = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(root) if root else Path.home() / ".cache") / "atom" / "native"


def triton_interpret() -> bool:
    """Whether ``TRITON_INTERPRET`` asks Triton to interpret its kernels (tests without a GPU)."""
    # Exactly what Triton itself takes for a yes.
    return os.environ.get("TRITON_INTERPRET", "").strip().lower() in ("1", "true", "on", "yes")


def fuse_norm_rope_cache() -> bool:
    """Whether ``ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION`` asks AITER for head norms, rotation and the cache write
    in one kernel, where it has one (``0``, ``false`` and empty mean no)."""
    return _is_asked_for("ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION")


def aiter_shuffles_linears() -> bool:
    """Whether ``ATOM_AITER_SHUFFLE_LINEAR`` asks for AITER's shuffled weights in linears (``0`` and empty mean no)."""
    return _is_asked_for("ATOM_AITER_SHUFFLE_LINEAR")


def aiter_fp8_heads() -> bool:
    """Whether ``ATOM_AITER_FP8_BMM`` lets AITER multiply the heads of latent attention in fp8: its queries, what it
    finds and ``kv_b_proj`` are rounded (``0``, ``false`` and empty mean no)."""
    return _is_asked_for("ATOM_AITER_FP8_BMM")


def aiter_mxfp4_heads() -> bool:
    """Whether ``ATOM_USE_TRITON_MXFP4_BMM`` lets AITER multiply them in MXFP4 on MI355X, which goes before fp8 (``0``,
    ``false`` and empty mean no)."""
    return _is_asked_for("ATOM_USE_TRITON_MXFP4_BMM")


def aiter_mxfp4_rows() -> bool:
    """Whether ``ATOM_AITER_MXFP4_ROWS`` lets AITER round rows of linears in MXFP4 to MXFP4 too, on MI355X, where their
    checkpoint leaves them as they are (``0``, ``false`` and empty mean no)."""
    return _is_asked_for("ATOM_AITER_MXFP4_ROWS")


def openmp_waits_are_set() -> bool:
    """Whether ``OMP_WAIT_POLICY`` or ``GOMP_SPINCOUNT`` say how threads wait for each other; else we choose by load."""
    return any(os.environ.get(name, "").strip() for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"))


def peer_sums_disabled() -> bool:
    """Whether ``ATOM_DISABLE_PEER_SUMS`` leaves ranks' sums to NCCL or gloo (``0``, ``false`` and empty mean no)."""
    return _is_asked_for("ATOM_DISABLE_PEER_SUMS")


def atom_variables() -> list[str]:
    """Names of all variables that begin as ours do, whoever reads them."""
    return [name for name in os.environ if name.startswith(PREFIX)]


def _is_asked_for(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() not in ("", "0", "false", "no", "off")
