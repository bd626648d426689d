"""Which environment variables that begin with ``ATOM_`` mean something, and what to say of those that do not.

The list is here once for all packages, since this one is under each of them; each reads its own in its settings.py.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from atom_kernels.settings import PREFIX, atom_variables

READ = frozenset(
    f"{PREFIX}{name}"
    for name in (
        # atom-kernels
        "AITER_SHUFFLE_LINEAR DISABLE_NATIVE ENABLE_QK_NORM_ROPE_CACHE_QUANT_FUSION "
        # atom-models and atom-core
        "CACHE_DIR LOG_LEVEL PROFILER_MORE TORCH_PROFILER_DIR "
        # atom-server
        "API_KEY DEBUG "
        # atom-vllm
        "DISABLE_VLLM_PLUGIN DISABLE_VLLM_PLUGIN_ATTENTION VLLM_ARCHITECTURES VLLM_COMPILE VLLM_FORCE"
    ).split()
)
# ROCm/ATOM's: scripts that come from there set them, and nothing here reads them.
OF_NO_EFFECT = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "DISABLE_MMAP DP_BASE_PORT DP_MASTER_IP DP_MASTER_PORT DP_RANK DP_RANK_LOCAL DP_SIZE "
        "ENABLE_ALLREDUCE_RMSNORM_FUSION ENABLE_DS_INPUT_RMSNORM_QUANT_FUSION ENABLE_DS_QKNORM_QUANT_FUSION "
        "LLAMA_ENABLE_AITER_TRITON_FUSED_RMSNORM_QUANT LLAMA_ENABLE_AITER_TRITON_FUSED_SILU_MUL_QUANT LOG_MORE "
        "USE_TRITON_GEMM USE_TRITON_MXFP4_BMM"
    ).split()
)

_MOST_LINES = 10
_LONGEST = 80


def warnings(names: Iterable[str] | None = None) -> list[str]:
    """A line for each variable of the environment (or of `names`) that nobody knows, with the nearest that is known."""
    found = sorted(set(atom_variables() if names is None else names) - READ - OF_NO_EFFECT)
    lines = [_warning(name) for name in found[:_MOST_LINES]]
    return lines if len(found) <= _MOST_LINES else [*lines, f"and {len(found) - _MOST_LINES} more that ATOM does not know"]


def left_aside(names: Iterable[str] | None = None) -> str | None:
    """A line with those variables of the environment (or of `names`) that are known to have no effect, if any."""
    found = sorted(OF_NO_EFFECT.intersection(atom_variables() if names is None else names))
    return f"of no effect here, though ROCm/ATOM reads them: {', '.join(found)}" if found else None


def _warning(name: str) -> str:
    # Whatever set the environment chose the name: it may be long, and hold line breaks.
    shown = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    # What all have in common would make any two alike.
    nearest = difflib.get_close_matches(_own_part(name[:_LONGEST]), [_own_part(known) for known in READ], n=1)
    hint = f": did you mean {PREFIX}{nearest[0]}?" if nearest else ""
    return f"the environment variable {shown!a} is none that ATOM reads{hint}"


def _own_part(name: str) -> str:
    return name.removeprefix(PREFIX)
