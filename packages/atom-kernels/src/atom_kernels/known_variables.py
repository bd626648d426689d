"""Which environment variables that begin with ``ATOM_`` mean something, and what to say of those that do not.

The list is here once for all packages, since this one is under each of them; each reads its own in its settings.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from atom_kernels.settings import PREFIX, atom_variables

READ = frozenset(
    {
        # atom-kernels
        "ATOM_AITER_FP8_BMM",
        "ATOM_AITER_MXFP4_ROWS",
        "ATOM_AITER_SHUFFLE_LINEAR",
        "ATOM_DISABLE_NATIVE",
        "ATOM_DISABLE_PEER_SUMS",
        "ATOM_ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION",
        "ATOM_USE_TRITON_MXFP4_BMM",
        # atom-models and atom-core
        "ATOM_CACHE_DIR",
        "ATOM_LOG_LEVEL",
        "ATOM_PROFILER_MORE",
        "ATOM_RANKS_SECRET",
        "ATOM_TORCH_PROFILER_DIR",
        # atom-server
        "ATOM_ADMIN_KEY",
        "ATOM_API_KEY",
        "ATOM_DEBUG",
        # atom-vllm
        "ATOM_DISABLE_VLLM_PLUGIN",
        "ATOM_DISABLE_VLLM_PLUGIN_ATTENTION",
        "ATOM_VLLM_ARCHITECTURES",
        "ATOM_VLLM_COMPILE",
        "ATOM_VLLM_FORCE",
    }
)
# ROCm/ATOM's: scripts that come from there set them, and nothing here reads them.
OF_NO_EFFECT = frozenset(
    {
        "ATOM_DISABLE_MMAP",
        "ATOM_DP_BASE_PORT",
        "ATOM_DP_LB_REQ_EQUIV",
        "ATOM_DP_MASTER_IP",
        "ATOM_DP_MASTER_PORT",
        "ATOM_DP_RANK",
        "ATOM_DP_RANK_LOCAL",
        "ATOM_DP_SIZE",
        "ATOM_ENABLE_ALLREDUCE_RMSNORM_FUSION",
        "ATOM_ENABLE_DS_INPUT_RMSNORM_QUANT_FUSION",
        "ATOM_ENABLE_DS_QKNORM_QUANT_FUSION",
        "ATOM_LLAMA_ENABLE_AITER_TRITON_FUSED_RMSNORM_QUANT",
        "ATOM_LLAMA_ENABLE_AITER_TRITON_FUSED_SILU_MUL_QUANT",
        "ATOM_LOG_MORE",
        "ATOM_USE_TRITON_GEMM",
    }
)

_MOST_LINES = 10
_LONGEST = 80


def warnings(names: Iterable[str] | None = None) -> list[str]:
    """A line for each variable of the environment (or of `names`) that is unknown, with the nearest known one."""
    found = sorted(set(atom_variables() if names is None else names) - READ - OF_NO_EFFECT)
    lines = [_warning(name) for name in found[:_MOST_LINES]]
    if len(found) > _MOST_LINES:
        lines.append(f"and {len(found) - _MOST_LINES} more that ATOM does not know")
    return lines


def left_aside(names: Iterable[str] | None = None) -> str | None:
    """A line with those variables of the environment (or of `names`) that are known to have no effect, if any."""
    found = sorted(OF_NO_EFFECT.intersection(atom_variables() if names is None else names))
    return f"of no effect here, though ROCm/ATOM reads them: {', '.join(found)}" if found else None


def _warning(name: str) -> str:
    # Whatever set the environment chose the name: it may be long, and hold line breaks.
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    # The prefix that all have in common would make any two alike.
    nearest = difflib.get_close_matches(_own_part(name[:_LONGEST]), [_own_part(known) for known in READ], n=1)
    hint = f": did you mean {PREFIX}{nearest[0]}?" if nearest else ""
    return f"ATOM does not read the environment variable {shown!a}{hint}"


def _own_part(name: str) -> str:
    return name.removeprefix(PREFIX)
