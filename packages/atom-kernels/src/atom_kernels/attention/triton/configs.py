"""How attention's Triton kernels are launched: tile sizes, warps and pipeline stages, by problem and device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from atom_kernels.platform import detect_platform
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.protocols.kv_cache import DTYPE_BYTES
from atom_kernels.settings import triton_interpret
from atom_kernels.triton.limits import fitting
from atom_kernels.tuned import tuned_rows

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem
    from atom_kernels.attention.problem import AttentionProblem

# Bytes of keys, and of values, that one pipeline stage loads.
_TILE_BYTES = 16384
# The block id of a key, which passes through local memory from one request of a program to the next.
_BLOCK_ID_BYTES = 4
# Few, so that in tests programs have several requests, and requests several programs.
_INTERPRETED_PROGRAMS = 12


@dataclass(frozen=True)
class DecodeConfig:
    """How `decode_kernel` is launched.

    Attributes:
        block_n: keys of a tile.
        programs: how many run on each multiprocessor at a time.
        prefetch: tiles that a program asks for while the kernel before it still runs.
        parts: that columns of queries and keys are multiplied in, see `tile`.
    """

    block_n: int
    programs: int
    num_warps: int
    num_stages: int
    prefetch: int = 1
    parts: int = 1


@dataclass(frozen=True)
class PrefillConfig:
    """How `prefill_kernel` is launched: query rows (tokens x heads of a group) and keys of a tile."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def decode_config(problem: AttentionProblem) -> DecodeConfig:
    if triton_interpret():
        return DecodeConfig(block_n=32, programs=1, num_warps=4, num_stages=2)
    tile = _TILE_BYTES // (power_of_two(problem.head_dim) * DTYPE_BYTES[problem.kv_cache_dtype])
    # Triton 3.6 adds up products of float32 over 128 keys wrongly where a group has 17 to 31 heads.
    most, stages = (64, 2) if problem.dtype == "float32" else (128, 3)
    config = DecodeConfig(min(max(tile, 16), most), programs=2, num_warps=4, num_stages=stages)
    config = replace(config, **_tuned("paged_attention", tuning_key(problem), "decode"))
    return fitting(config, "block_n", lambda config: config.block_n * (_token_bytes(problem) + _BLOCK_ID_BYTES))


def reads_words(problem: AttentionProblem) -> bool:
    """Whether decodes read two codes of a cache at a time: where an instruction makes numbers of two (see `words`)."""
    # Each part of a product has at least 16 columns.
    is_wide = problem.head_dim % 2 == 0 and power_of_two(problem.head_dim) >= 32
    is_nvidia = triton_interpret() or detect_platform().vendor == "nvidia"
    return is_wide and is_nvidia and problem.kv_cache_dtype == "float8_e4m3fn" and problem.dtype != "float32"


def prefill_config(problem: AttentionProblem) -> PrefillConfig:
    if triton_interpret():
        return PrefillConfig(block_m=32, block_n=32, num_warps=4, num_stages=2)
    if problem.dtype == "float32" or problem.head_dim > 128:
        config = PrefillConfig(64, 32, num_warps=4, num_stages=2)
    else:
        config = PrefillConfig(128, 64, num_warps=8 if problem.head_dim > 64 else 4, num_stages=3)
    config = replace(config, **_tuned("paged_attention", tuning_key(problem), "prefill"))
    return _fitting_prefill(config, _token_bytes(problem))


def latent_decode_config(problem: MlaProblem, group: int) -> DecodeConfig:
    """`group`: heads of a program."""
    if triton_interpret():
        return DecodeConfig(block_n=32, programs=1, num_warps=4, num_stages=2, parts=2)
    if problem.dtype == "float32":
        config = DecodeConfig(block_n=16, programs=1, num_warps=8, num_stages=3)
    elif group <= 32:
        # So few registers that the next kernel's programs wait beside these.
        config = DecodeConfig(block_n=32, programs=1, num_warps=4, num_stages=4, prefetch=2, parts=4)
    else:
        # Queries of many heads leave room for fewer stages.
        config = DecodeConfig(block_n=64, programs=1, num_warps=8, num_stages=2)
    config = replace(config, **_tuned("latent_attention", latent_tuning_key(problem), "decode"))
    latent = problem.latent_dim * DTYPE_BYTES[problem.kv_cache_dtype]
    return fitting(config, "block_n", lambda config: config.block_n * latent)


def latent_prefill_config(problem: MlaProblem) -> PrefillConfig:
    if triton_interpret():
        return PrefillConfig(block_m=32, block_n=32, num_warps=4, num_stages=2)
    wide = problem.dtype == "float32"
    config = PrefillConfig(32, 16, num_warps=8, num_stages=2) if wide else PrefillConfig(64, 64, 8, 2)
    config = replace(config, **_tuned("latent_attention", latent_tuning_key(problem), "prefill"))
    return _fitting_prefill(config, problem.latent_dim * DTYPE_BYTES[problem.kv_cache_dtype])


def expanded_prefill_config(problem: MlaProblem) -> PrefillConfig:
    if triton_interpret():
        return PrefillConfig(block_m=32, block_n=32, num_warps=4, num_stages=2)
    wide = problem.dtype == "float32" or problem.v_head_dim > 128
    config = PrefillConfig(64, 32, num_warps=4, num_stages=2) if wide else PrefillConfig(128, 64, 8, 2)
    config = replace(config, **_tuned("latent_attention", latent_tuning_key(problem), "expanded"))
    expanded = problem.qk_nope_head_dim + problem.qk_rope_head_dim + problem.v_head_dim
    return _fitting_prefill(config, expanded * DTYPE_BYTES[problem.dtype])


def _token_bytes(problem: AttentionProblem) -> int:
    """Bytes of a token's key and value in one head, as tiles hold them."""
    return 2 * power_of_two(problem.head_dim) * DTYPE_BYTES[problem.kv_cache_dtype]


def _fitting_prefill(config: PrefillConfig, token_bytes: int) -> PrefillConfig:
    """Probabilities of a tile pass through local memory on their way to the second product."""
    return fitting(config, "block_n", lambda config: config.block_n * (token_bytes + 2 * config.block_m))


def tuning_key(problem: AttentionProblem) -> str:
    """The key of a problem's configurations."""
    return f"group={problem.group_size} head_dim={problem.head_dim} {problem.dtype} cache={problem.kv_cache_dtype}"


def latent_tuning_key(problem: MlaProblem) -> str:
    """The same for latent attention."""
    return f"heads={problem.num_heads} latent={problem.latent_dim} {problem.dtype} cache={problem.kv_cache_dtype}"


def num_programs(config: DecodeConfig, device: torch.device) -> int:
    """Programs that decode at a time on all of the device."""
    if device.type != "cuda":
        return _INTERPRETED_PROGRAMS
    return config.programs * torch.cuda.get_device_properties(device).multi_processor_count


def _tuned(operator: str, key: str, part: str) -> dict[str, int]:
    rows = tuned_rows(operator, key, detect_platform().name)
    return dict(rows[0].config.get(part, {})) if rows else {}
