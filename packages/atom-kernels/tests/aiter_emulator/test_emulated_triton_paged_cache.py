"""Rotation and the paged cache in Triton, emulated."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from rotation_by_hand import BF16, POSITIONS, close, normal, table, turned
from tests.aiter_emulator.semantics.errors import SilentlyWrong

BLOCKS, BLOCK = 4, 16
SLOTS = torch.tensor([5, -1, 40, 63, 0])


def triton() -> ModuleType:
    return importlib.import_module("aiter.ops.triton.fused_kv_cache")


def paged_arguments(flash: bool, **changes) -> dict:
    cos, sin = table(16)
    shapes = [(BLOCKS, BLOCK, 2, 32)] * 2 if flash else [(BLOCKS, 2, 4, BLOCK, 8), (BLOCKS, 2, 32, BLOCK)]
    caches = [torch.zeros(shape, dtype=BF16) for shape in shapes]
    given = {
        "q": normal(5, 4, 32),
        "k": normal(5, 2, 32),
        "v": normal(5, 2, 32),
        "key_cache": caches[0],
        "value_cache": caches[1],
        "slot_mapping": SLOTS,
        "pos": POSITIONS,
        "cos": cos,
        "sin": sin,
        "k_scale": None,
        "v_scale": None,
        "is_neox": True,
        "flash_layout": flash,
    }
    return given | changes


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("flash", [True, False])
def test_rotation_and_paged_write_in_triton(aiter: ModuleType, neox: bool, flash: bool):
    given = paged_arguments(flash, is_neox=neox)
    q_out, k_out, key_cache, value_cache, zeros = triton().fused_qk_rope_reshape_and_cache(**given)
    close(q_out, turned(given["q"], given["cos"], given["sin"], neox))
    kept = SLOTS >= 0
    close(k_out[kept], turned(given["k"], given["cos"], given["sin"], neox)[kept])
    assert k_out[1].isnan().all()
    assert (zeros.shape, zeros.count_nonzero()) == (given["q"].shape, 0)
    assert (key_cache, value_cache) == (given["key_cache"], given["value_cache"])
    keys = key_cache.flatten(0, 1) if flash else key_cache.permute(0, 3, 1, 2, 4).reshape(-1, 2, 32)
    values = value_cache.flatten(0, 1) if flash else value_cache.permute(0, 3, 1, 2).reshape(-1, 2, 32)
    assert torch.equal(keys[SLOTS[kept]], k_out[kept])
    assert torch.equal(values[SLOTS[kept]], given["v"][kept])


def test_outputs_offsets_scales_and_views_are_honoured(aiter: ModuleType):
    by_head = [torch.zeros(BLOCKS, 2, BLOCK, 32, dtype=aiter.dtypes.fp8).transpose(1, 2) for _ in range(2)]
    scales = {"k_scale": torch.tensor([0.5]), "v_scale": torch.tensor([2.0])}
    given = paged_arguments(True, key_cache=by_head[0], value_cache=by_head[1], **scales)
    outs = {"q_out": torch.empty(5, 4, 32, dtype=BF16), "k_out": torch.empty(5, 2, 32, dtype=BF16)}
    moved = given | {"pos": POSITIONS - 1, "offs": torch.ones(5, dtype=torch.int64)}
    results = triton().fused_qk_rope_reshape_and_cache(**moved, **outs, output_zeros=False)
    assert (results[0], results[1]) == (outs["q_out"], outs["k_out"])
    assert len(results) == 4
    close(outs["q_out"], turned(given["q"], given["cos"], given["sin"], True))
    torch.testing.assert_close(by_head[1][3, 15].float() * 2, given["v"][3].float(), rtol=0.07, atol=0.02)
    torch.testing.assert_close(by_head[0][3, 15].float() * 0.5, outs["k_out"][3].float(), rtol=0.07, atol=0.02)
    triton().fused_qk_rope_reshape_and_cache(**given, apply_scale=False)
    torch.testing.assert_close(by_head[1][3, 15].float(), given["v"][3].float(), rtol=0.07, atol=0.02)


def test_shuffled_values_are_for_git(git_aiter: ModuleType, pypi_aiter: ModuleType):
    shuffled = torch.zeros(BLOCKS, 2, BLOCK // 8, 32, 8, dtype=BF16)
    with pytest.raises(AssertionError, match="value_cache"):
        triton().fused_qk_rope_reshape_and_cache(**paged_arguments(False, value_cache=shuffled))


def test_git_shuffles_values_and_takes_no_fp16_cache(git_aiter: ModuleType):
    shuffled = torch.zeros(BLOCKS, 2, BLOCK // 8, 32, 8, dtype=BF16)
    given = paged_arguments(False, value_cache=shuffled)
    triton().fused_qk_rope_reshape_and_cache(**given)
    assert torch.equal(shuffled[2, :, 1, :, 0], given["v"][2])
    half = [torch.zeros(BLOCKS, BLOCK, 2, 32, dtype=torch.float16) for _ in range(2)]
    with pytest.raises(AssertionError, match="BF16"):
        triton().fused_qk_rope_reshape_and_cache(**paged_arguments(True, key_cache=half[0], value_cache=half[1]))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"slot_mapping": SLOTS[:4]}, SilentlyWrong, "left out"),
        ({"slot_mapping": SLOTS + 60}, SilentlyWrong, "slots reach"),
        ({"pos": POSITIONS + 6}, SilentlyWrong, "pos leaves"),
        ({"pos": POSITIONS.float()}, SilentlyWrong, "pos is"),
        ({"sin": table(32)[1][:, ::2]}, SilentlyWrong, "strides of cos"),
        ({"cos": table(8)[0]}, AssertionError, "cos/sin"),
        ({"q": normal(5, 3, 32)}, AssertionError, "multiple"),
        ({"k": normal(4, 2, 32)}, AssertionError, "tokens"),
        ({"v": normal(5, 2, 16)}, AssertionError, "differ"),
        ({"value_cache": torch.zeros(BLOCKS, 2, BLOCK, 32, dtype=BF16)}, AssertionError, "shapes"),
        ({"key_cache": torch.zeros(BLOCKS, 2, BLOCK, 32, dtype=BF16)}, AssertionError, "key_cache is not"),
        ({"k_scale": torch.ones(2)}, AssertionError, "single"),
        ({"q_out": torch.empty(5, 4, 16, dtype=BF16)}, AssertionError, "q_out shape"),
        ({"value_cache": torch.zeros(BLOCKS, BLOCK, 2, 32)}, SilentlyWrong, "different dtypes"),
        ({"slot_mapping": SLOTS.repeat_interleave(2)[::2]}, SilentlyWrong, "slot_mapping has strides"),
    ],
)
def test_what_the_paged_triton_kernel_misreads(aiter: ModuleType, changes: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        triton().fused_qk_rope_reshape_and_cache(**paged_arguments(True, **changes))


def test_sizes_in_triton_are_powers_of_two(aiter: ModuleType):
    odd = {name: normal(5, heads, 24) for name, heads in (("q", 4), ("k", 2), ("v", 2))}
    caches = {name: torch.zeros(BLOCKS, BLOCK, 2, 24, dtype=BF16) for name in ("key_cache", "value_cache")}
    cos, sin = table(12)
    with pytest.raises(AssertionError, match="powers of 2"):
        triton().fused_qk_rope_reshape_and_cache(**paged_arguments(True, **odd, **caches, cos=cos, sin=sin))


@pytest.mark.parametrize("shared", [("q_out", "k"), ("q_out", "v"), ("k_out", "v"), ("q_out", "k_out")])
def test_outputs_share_no_memory_with_what_others_read(aiter: ModuleType, shared: tuple[str, str]):
    tensor = normal(5, 2, 32)
    given = paged_arguments(True, q=normal(5, 2, 32)) | dict.fromkeys(shared, tensor)
    with pytest.raises(SilentlyWrong, match="share memory"):
        triton().fused_qk_rope_reshape_and_cache(**given)


def test_the_fp8_of_the_other_architecture_is_no_cache(git_aiter: ModuleType, pypi_aiter: ModuleType):
    other = torch.float8_e4m3fn
    caches = {name: torch.zeros(BLOCKS, BLOCK, 2, 32).to(other) for name in ("key_cache", "value_cache")}
    with pytest.raises(SilentlyWrong, match="not the fp8 of gfx942"):
        triton().fused_qk_rope_reshape_and_cache(**paged_arguments(True, **caches))
