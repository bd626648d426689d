"""Where Hopper's own kernel attends to prompts, and caches as the rows that it copies; no GPU is needed for either."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("triton")

import torch

from atom_kernels.attention.cases import make_step
from atom_kernels.attention.hopper import configs as hopper_configs
from atom_kernels.attention.hopper.configs import HopperConfig, heads_at_a_time, heads_of_a_run, hopper_config
from atom_kernels.attention.ops import make_problem
from atom_kernels.attention.problem import AttentionProblem
from atom_kernels.attention.triton import launch
from atom_kernels.attention.triton.backend import TritonAttention
from atom_kernels.mixers import CacheFormat
from atom_kernels.platform import Facts, Platform, platform_from_facts, use_platform

PROBLEM = make_problem(16, 8, 128, "bfloat16")
BLOCKS, BLOCK_SIZE, HEADS, HEAD_DIM = 5, 16, 4, 64


def nvidia(arch: str) -> Platform:
    return platform_from_facts(Facts(torch_build="cuda", num_devices=1, device_arch=arch, triton_version="3.6.0"))


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton that the kernel is written for, and that compiles."""
    monkeypatch.setattr(hopper_configs, "triton_release", lambda: "3.6")
    monkeypatch.setattr(hopper_configs, "triton_interpret", lambda: False)


@pytest.mark.usefixtures("triton")
@pytest.mark.parametrize(
    ("problem", "served"),
    [
        (PROBLEM, True),
        (make_problem(64, 8, 64, "float16", has_sinks=True, block_size=256), True),
        (replace(PROBLEM, dtype="float32", cache=CacheFormat("float32")), False),
        (replace(PROBLEM, cache=CacheFormat("float8_e4m3fn")), False),
        (replace(PROBLEM, sliding_window=128), False),
        (replace(PROBLEM, soft_cap=30.0), False),
        (replace(PROBLEM, batch_invariant=True), False),
        (replace(PROBLEM, block_size=4), False),
        (replace(PROBLEM, block_size=24), False),
        (make_problem(14, 2, 64, "bfloat16"), True),
        (make_problem(40, 8, 128, "bfloat16"), True),
        (make_problem(16, 8, 80, "bfloat16"), False),
    ],
    ids=str,
)
def test_problems_that_it_is_written_for_are_served_on_hopper_and_nowhere_else(problem: AttentionProblem, served: bool):
    with use_platform(nvidia("sm_90")):
        assert (hopper_config(problem) is not None) == served
    for other in (nvidia("sm_89"), nvidia("sm_100"), Platform.rocm("gfx942")):
        with use_platform(other):
            assert hopper_config(problem) is None


@pytest.mark.usefixtures("triton")
def test_another_triton_or_its_interpreter_has_the_plain_kernel(monkeypatch: pytest.MonkeyPatch):
    with use_platform(nvidia("sm_90")):
        monkeypatch.setattr(hopper_configs, "triton_interpret", lambda: True)
        assert hopper_config(PROBLEM) is None
        monkeypatch.setattr(hopper_configs, "triton_interpret", lambda: False)
        monkeypatch.setattr(hopper_configs, "triton_release", lambda: "3.7")
        assert hopper_config(PROBLEM) is None


@pytest.mark.parametrize(
    ("requests", "num_decodes", "served"),
    [
        ([(100, 100)], 0, True),
        ([(99, 4000)], 0, False),
        ([(50, 700)] * 2, 0, True),
        ([(30, 30)] * 4, 0, False),
        ([(1, 50)] * 100, 100, False),
    ],
)
def test_prompts_of_steps_of_many_tokens_have_a_counter(
    requests: list[tuple[int, int]], num_decodes: int, served: bool, monkeypatch: pytest.MonkeyPatch
):
    problem = make_problem(2, 1, 16)
    config = HopperConfig(least_tokens=100, least_average=40)
    kernels = replace(TritonAttention(problem, problem.layout).kernels, hopper=config)
    # By a kernel, which needs a GPU.
    monkeypatch.setattr(launch, "share_decodes", lambda *given: None)
    geometry = replace(make_step(problem, requests).geometry, num_decodes=num_decodes)
    assert (kernels.build_metadata(geometry).counter is not None) == served


@pytest.mark.parametrize(("head_bytes", "heads"), [(0, 12), (2 << 20, 6), (4 << 20, 4), (10 << 20, 1), (1 << 40, 1)])
def test_heads_that_share_the_l2_cache_divide_their_number(head_bytes: int, heads: int):
    assert heads_at_a_time(12, head_bytes) == heads


@pytest.mark.parametrize(("group_size", "heads"), [(1, 1), (3, 1), (4, 4), (5, 1), (6, 2), (12, 4), (16, 16)])
def test_a_run_of_heads_is_a_power_of_two_and_divides_the_group(group_size: int, heads: int):
    assert heads_of_a_run(group_size) == heads


def caches() -> dict[str, torch.Tensor]:
    shape = (BLOCKS, BLOCK_SIZE, HEADS, HEAD_DIM)
    pairs = torch.randn(BLOCKS, 2, *shape[1:])
    return {
        "tokens": torch.randn(shape),
        "values behind keys": pairs[:, 1],
        "heads": torch.randn(BLOCKS, HEADS, BLOCK_SIZE, HEAD_DIM).transpose(1, 2),
        "one block": torch.randn(shape)[2:3],
        "one head": torch.randn(shape)[:, :, :1].contiguous(),
        "keys beside values": torch.randn(BLOCKS, BLOCK_SIZE, HEADS, 2 * HEAD_DIM)[..., HEAD_DIM:],
    }


@pytest.mark.parametrize("name", caches())
def test_rows_of_a_cache_hold_its_heads(name: str):
    from atom_kernels.attention.hopper.launch import cache_rows

    cache = caches()[name]
    rows = cache_rows(cache)
    assert rows is not None
    seen = torch.as_strided(cache, (rows.num_rows, rows.num_columns), (rows.row_stride, 1), cache.storage_offset())
    for block, slot, head in [(0, 0, 0), (cache.shape[0] - 1, 15, cache.shape[2] - 1), (cache.shape[0] // 2, 7, 0)]:
        column = head * rows.head_columns
        row = seen[block * rows.block_rows + slot + head * rows.head_rows, column : column + HEAD_DIM]
        assert torch.equal(row, cache[block, slot, head])


@pytest.mark.parametrize(
    "strides", [(16 * 256 + 8, 256, 64, 1), (16 * 260, 260, 64, 1), (16 * 256, 256, 1, 4), (4 * 1032, 64, 1032, 1)]
)
def test_a_cache_that_tma_cannot_step_over_has_no_rows(strides: tuple[int, ...]):
    from atom_kernels.attention.hopper.launch import cache_rows

    storage = torch.zeros(BLOCKS * 16 * 300, dtype=torch.bfloat16)
    assert cache_rows(storage.as_strided((BLOCKS, BLOCK_SIZE, HEADS, HEAD_DIM), strides)) is None


def test_caches_of_different_strides_and_queries_off_by_an_element_have_no_rows():
    from atom_kernels.attention.hopper.launch import rows_of_both

    storage = torch.zeros(BLOCKS * 16 * 512, dtype=torch.bfloat16)
    cache = storage[: BLOCKS * 16 * 256].view(BLOCKS, BLOCK_SIZE, HEADS, HEAD_DIM)
    apart = storage.as_strided(cache.shape, (16 * 512, 512, 64, 1))
    q = torch.zeros(30 * 64 + 1, dtype=torch.bfloat16)
    assert rows_of_both(q[:-1].view(10, 3, 64), cache, cache) is not None
    assert rows_of_both(q[:-1].view(10, 3, 64), cache, apart) is None
    assert rows_of_both(q[1:].view(10, 3, 64), cache, cache) is None
