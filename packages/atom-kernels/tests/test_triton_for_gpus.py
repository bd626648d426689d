"""Our Triton kernels as GPUs get them that are not here: legal launches, code for their instructions, tiles that fit.

In processes of their own, since Triton has one driver, and decides at import whether it interprets.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atom_kernels.attention.ops import make_problem
from atom_kernels.attention.triton.configs import decode_config, prefill_config
from atom_kernels.moe.contract import ExpertsProblem
from atom_kernels.moe.triton.configs import TileConfig, default_config
from atom_kernels.platform import Facts, Platform, platform_from_facts, use_platform

_LAUNCHES = Path(__file__).parents[3] / "tests/support/gpu_launches.py"
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def _launch_all(*arguments: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, str(_LAUNCHES), *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    return run.stdout


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("arch", ["gfx942", "sm_90", pytest.param("gfx950", marks=pytest.mark.by_hand)])
def test_every_kernel_compiles_for_the_gpu_and_fits_its_local_memory(arch: str):
    launched = _launch_all(arch)
    names = ("decode_kernel", "prefill_kernel", "experts_kernel", "skinny_linear_kernel", "search_kernel")
    names += ("short_conv_kernel", "gated_delta_kernel", "factor_chunks_kernel", "factor_channels_kernel")
    names += ("accept_kernel", "encoder_kernel", "encoder_prologue_kernel", "embedding_kernel")
    names += ("sum_packets_kernel", "sum_at_once_kernel", "sum_in_two_kernel", "add_pieces_kernel")
    names += ("shrink_kernel", "expand_kernel")
    for kernel in (*names, "index_scores_kernel", "choose_kernel", "chosen_slots_kernel"):
        assert kernel in launched
    for kernel in ("hopper_prefill_kernel", "hopper_scan_kernel"):
        assert (kernel in launched) == (arch == "sm_90")
    assert ("scan_chunks_kernel" in launched) == (arch != "sm_90")


def _nvidia(arch: str) -> Platform:
    return platform_from_facts(Facts(torch_build="cuda", num_devices=1, device_arch=arch, triton_version="3.6.0"))


def test_tiles_shrink_only_where_local_memory_is_small():
    problem = make_problem(32, 8, 128, "bfloat16")
    experts = ExpertsProblem(8, 2, 2048, 768, torch.bfloat16)
    with use_platform(_nvidia("sm_90")):
        assert (prefill_config(problem).block_n, prefill_config(problem).num_stages) == (64, 3)
        assert default_config(experts, 128).down == TileConfig(64, 128, 64, group_m=8)
    with use_platform(Platform.rocm("gfx942")):
        assert prefill_config(problem).num_stages == 2
        assert decode_config(problem).num_stages == 2  # three stages and the block ids are more than 64 KiB
        assert default_config(experts, 128).down == TileConfig(64, 128, 64, group_m=8, num_stages=3)


# Experts, how many a token has, and tokens, measured on an H200; and what was best, or within 4% of it, for nearly all.
MEASURED = {
    (128, 8, 1): TileConfig(16, 128, 64, swap=True, num_warps=8, num_stages=5),
    (32, 4, 8): TileConfig(16, 128, 128, swap=True, num_stages=3),
    (96, 8, 128): TileConfig(16, 128, 128, swap=True, num_stages=3),
    (64, 6, 256): TileConfig(32, 128, 128, num_stages=3),
    (32, 4, 256): TileConfig(64, 128, 64, group_m=8),
}


@pytest.mark.parametrize("case", MEASURED, ids=str)
def test_untuned_experts_have_the_tiles_that_were_measured_as_best(case):
    num_experts, top_k, num_tokens = case
    with use_platform(_nvidia("sm_90")):
        found = default_config(ExpertsProblem(num_experts, top_k, 2048, 1024, torch.bfloat16), num_tokens)
    assert found.gate_up == found.down == MEASURED[case]
