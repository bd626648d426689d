"""Norms, rotation and a packed cache in one kernel, emulated (git only)."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from rotation_by_hand import BF16, POSITIONS, close, normal, table, turned
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BLOCKS, BLOCK = 4, 16
SLOTS = torch.tensor([5, -1, 40, 63, 0])
DIM = 64


def norm_arguments(**changes) -> dict:
    qkv = normal(5, 8 * DIM)
    q, k, v = qkv.split([4 * DIM, 2 * DIM, 2 * DIM], dim=1)
    given = {
        "q": q,
        "k": k,
        "v": v,
        "num_heads_q": 4,
        "num_heads_k": 2,
        "num_heads_v": 2,
        "head_dim": DIM,
        "eps": 1e-6,
        "qw": normal(DIM),
        "kw": normal(DIM),
        "cos_sin_cache": torch.cat(table(DIM // 2), 1),
        "is_neox_style": True,
        "pos_ids": POSITIONS,
        "k_cache": torch.zeros(BLOCKS, 2, DIM // 8, BLOCK, 8, dtype=BF16),
        "v_cache": torch.zeros(BLOCKS, 2, BLOCK // 8, DIM, 8, dtype=BF16),
        "slot_mapping": SLOTS,
        "kv_cache_dtype": "auto",
        "k_scale": torch.ones(1),
        "v_scale": torch.ones(1),
    }
    return given | changes


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rank", [4, 5])
def test_heads_are_normed_and_turned_in_place_and_cached(git_aiter: ModuleType, neox: bool, rank: int):
    given = norm_arguments(is_neox_style=neox)
    if rank == 4:
        given["v_cache"] = given["v_cache"].view(BLOCKS, 2, DIM, BLOCK)
    cos, sin = given["cos_sin_cache"].chunk(2, 1)
    expected = {}
    for name, heads in (("q", 4), ("k", 2)):
        x = given[name].float().view(5, heads, DIM)
        normed = torch.nn.functional.rms_norm(x, (DIM,), given[f"{name}w"].float(), 1e-6).to(BF16)
        expected[name] = turned(normed, cos, sin, neox)
    v = given["v"].clone().view(5, 2, DIM)
    git_aiter.fused_qk_norm_rope_cache_quant_shuffle(**given)
    close(given["q"].view(5, 4, DIM), expected["q"])
    close(given["k"].view(5, 2, DIM), expected["k"])
    keys = given["k_cache"].permute(0, 3, 1, 2, 4).reshape(-1, 2, DIM)
    values = given["v_cache"].view(BLOCKS, 2, BLOCK // 8, DIM, 8).permute(0, 2, 4, 1, 3).reshape(-1, 2, DIM)
    kept = SLOTS >= 0
    assert torch.equal(keys[SLOTS[kept]], given["k"].view(5, 2, DIM)[kept])
    assert torch.equal(values[SLOTS[kept]], v[kept])


def test_an_fp8_cache_gets_a_scale_for_each_head(git_aiter: ModuleType):
    fp8 = git_aiter.dtypes.fp8
    caches = {
        "k_cache": torch.zeros(BLOCKS, 2, DIM // 16, BLOCK, 16, dtype=fp8),
        "v_cache": torch.zeros(BLOCKS, 2, 1, DIM, 16, dtype=fp8),
    }
    scales = {f"{name}_scale": torch.zeros(BLOCKS, 2, BLOCK) for name in "kv"}
    given = norm_arguments(**caches, **scales, kv_cache_dtype="fp8")
    git_aiter.fused_qk_norm_rope_cache_quant_shuffle(**given)
    scale = scales["v_scale"][2, :, 8]
    torch.testing.assert_close(scale, given["v"].view(5, 2, DIM)[2].float().abs().amax(-1) / 240)
    stored = caches["v_cache"][2, :, 0, :, 8].float() * scale[:, None]
    torch.testing.assert_close(stored, given["v"].view(5, 2, DIM)[2].float(), rtol=0.07, atol=0.02)
    keys = caches["k_cache"][3, :, :, 15].flatten(1).float() * scales["k_scale"][3, :, 15, None]
    torch.testing.assert_close(keys, given["k"].view(5, 2, DIM)[3].float(), rtol=0.07, atol=0.02)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"head_dim": 32}, Refused, "heads of 32"),
        ({"num_heads_q": 3}, Refused, "q has shape"),
        ({"pos_ids": POSITIONS.int()}, Refused, "pos_ids is"),
        ({"slot_mapping": SLOTS.int()}, Refused, "slot_mapping is"),
        ({"slot_mapping": SLOTS[:4].clone()}, SilentlyWrong, "fewer slots"),
        ({"slot_mapping": SLOTS + 1}, SilentlyWrong, "slots reach"),
        ({"pos_ids": POSITIONS + 1}, SilentlyWrong, "pos_ids leaves"),
        ({"qw": normal(DIM).float()}, Refused, "weights"),
        ({"kw": normal(DIM + 1)}, Refused, "weights"),
        ({"cos_sin_cache": normal(13, DIM // 2)}, Refused, "head_dim wide"),
        ({"cos_sin_cache": normal(13, DIM).float()}, SilentlyWrong, "cos_sin_cache is"),
        ({"v": normal(5, 2, DIM).float()}, Refused, "different dtypes"),
        ({"k_cache": torch.zeros(BLOCKS, BLOCK, 2, DIM, dtype=BF16)}, Refused, "5-D"),
        ({"v_cache": torch.zeros(BLOCKS, 2, DIM, BLOCK // 8, 8, dtype=BF16)}, SilentlyWrong, "value_cache has shape"),
        ({"v_cache": torch.zeros(BLOCKS, 2, BLOCK, DIM, dtype=BF16).mT}, Refused, "contiguous"),
        ({"kv_cache_dtype": "fp8"}, SilentlyWrong, "k_cache is"),
        ({"kv_cache_dtype": "int4"}, Refused, "Unsupported"),
        ({"k_scale": None}, TypeError, "k_scale"),
        ({"q": normal(5, 1, 4, DIM)}, Refused, "2 or 3 dimensions"),
        ({"v": normal(5, 4, DIM), "num_heads_v": 4}, SilentlyWrong, "4 of v"),
        ({"k": normal(4, 2, DIM)}, Refused, "numbers of tokens"),
        ({"pos_ids": POSITIONS.repeat_interleave(2)[::2]}, Refused, "pos_ids must be"),
        ({"cos_sin_cache": normal(DIM, 13).t()}, Refused, "cos_sin_cache must be contiguous"),
        ({"v_cache": torch.zeros(BLOCKS, 2, DIM, 12, dtype=BF16)}, Refused, "page_size"),
    ],
)
def test_what_the_fused_norm_misreads(git_aiter: ModuleType, changes: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        git_aiter.fused_qk_norm_rope_cache_quant_shuffle(**norm_arguments(**changes))


@pytest.mark.parametrize(("heads", "head_dim"), [(3, 64), (2, 96)])
def test_the_fused_norm_is_compiled_for_some_heads_only(git_aiter: ModuleType, heads: int, head_dim: int):
    sizes = {"num_heads_q": heads, "num_heads_k": heads, "num_heads_v": heads, "head_dim": head_dim}
    parts = {name: normal(5, heads, head_dim) for name in "qkv"}
    with pytest.raises(Refused, match="Unsupported"):
        git_aiter.fused_qk_norm_rope_cache_quant_shuffle(**norm_arguments(**sizes, **parts))


def test_scales_of_another_size_are_found(git_aiter: ModuleType):
    caches = {
        "k_cache": torch.zeros(BLOCKS, 2, DIM // 16, BLOCK, 16, dtype=git_aiter.dtypes.fp8),
        "v_cache": torch.zeros(BLOCKS, 2, 1, DIM, 16, dtype=git_aiter.dtypes.fp8),
    }
    with pytest.raises(SilentlyWrong, match="k_scale has 1 elements"):
        git_aiter.fused_qk_norm_rope_cache_quant_shuffle(**norm_arguments(**caches, kv_cache_dtype="fp8"))


@pytest.mark.parametrize("shared", ["qk", "qv", "kv"])
def test_tensors_that_are_written_share_no_memory(git_aiter: ModuleType, shared: str):
    heads = {"num_heads_q": 2}
    tensor = normal(5, 2, DIM)
    parts = {"q": normal(5, 2, DIM)} | dict.fromkeys(shared, tensor)
    with pytest.raises(SilentlyWrong, match="share memory"):
        git_aiter.fused_qk_norm_rope_cache_quant_shuffle(**norm_arguments(**heads, **parts))


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (torch.zeros(BLOCKS, 2, BLOCK, dtype=BF16), "v_scale is"),
        (torch.zeros(BLOCKS, BLOCK, 2).transpose(1, 2), "v_scale has strides"),
        (torch.zeros(BLOCKS, 2, BLOCK + 1), "v_scale has"),
    ],
)
def test_scales_that_are_written_elsewhere_are_found(git_aiter: ModuleType, scale: torch.Tensor, words: str):
    caches = {
        "k_cache": torch.zeros(BLOCKS, 2, DIM // 16, BLOCK, 16, dtype=git_aiter.dtypes.fp8),
        "v_cache": torch.zeros(BLOCKS, 2, 1, DIM, 16, dtype=git_aiter.dtypes.fp8),
    }
    scales = {"k_scale": torch.zeros(BLOCKS, 2, BLOCK), "v_scale": scale}
    with pytest.raises(SilentlyWrong, match=words):
        git_aiter.fused_qk_norm_rope_cache_quant_shuffle(**norm_arguments(**caches, **scales, kv_cache_dtype="fp8"))
