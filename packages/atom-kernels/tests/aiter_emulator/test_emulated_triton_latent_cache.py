"""Rotation and the cache of MLA in Triton, emulated."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from rotation_by_hand import BF16, POSITIONS, close, normal, table, turned
from tests.aiter_emulator.semantics.errors import SilentlyWrong

BLOCKS, BLOCK = 4, 16
SLOTS = torch.tensor([5, -1, 40, 63, 0])
OTHER_FP8 = torch.float8_e4m3fn


def triton() -> ModuleType:
    return importlib.import_module("aiter.ops.triton.fused_kv_cache")


def latent_triton_arguments(**changes) -> dict:
    cos, sin = table(8)
    given = {
        "q_nope": normal(3, 4, 32),
        "q_pe": normal(3, 4, 16),
        "k_nope": normal(5, 1, 32),
        "k_pe": normal(5, 1, 16),
        "kv_cache": torch.zeros(64, 1, 48, dtype=BF16),
        "slot_mapping": SLOTS,
        "pos": POSITIONS,
        "cos": cos,
        "sin": sin,
        "k_scale": torch.tensor([0.5]),
        "is_neox": True,
    }
    return given | changes


def test_latent_write_in_triton_turns_keys_of_queries_only(aiter: ModuleType):
    given = latent_triton_arguments()
    q_out, decode_q_pe, k_pe_out, *rest = triton().fused_qk_rope_cat_and_cache_mla(
        **given, apply_scale=False, num_decode_toks_for_zeros=2
    )
    tables = given["cos"], given["sin"], True
    close(q_out, torch.cat((given["q_nope"].float(), turned(given["q_pe"], *tables)), -1))
    assert torch.equal(decode_q_pe, q_out[:2, :, 32:])
    keys = torch.cat((turned(given["k_pe"][:3], *tables), given["k_pe"][3:].float()))
    close(k_pe_out[SLOTS >= 0], keys[SLOTS >= 0])
    rows = torch.cat((given["k_nope"].float(), keys), -1)
    close(given["kv_cache"][SLOTS[SLOTS >= 0]], rows[SLOTS >= 0])
    zeros = rest[-1]
    assert (zeros.shape, zeros.count_nonzero()) == ((2, 4, 32), 0)


def test_the_fourth_result_is_another_one_in_each_release(git_aiter: ModuleType):
    given = latent_triton_arguments()
    assert triton().fused_qk_rope_cat_and_cache_mla(**given)[3].shape == (0, 4, 32)


def test_on_pypi_the_fourth_result_is_the_cache(pypi_aiter: ModuleType):
    given = latent_triton_arguments()
    results = triton().fused_qk_rope_cat_and_cache_mla(**given)
    assert results[3] is given["kv_cache"]
    assert len(results) == 4


def test_latent_scale_and_query_dtype_in_triton(aiter: ModuleType):
    fp8 = aiter.dtypes.fp8
    given = latent_triton_arguments(kv_cache=torch.zeros(64, 1, 48).to(fp8))
    q_out, *_ = triton().fused_qk_rope_cat_and_cache_mla(**given, q_out_dtype=fp8)
    assert q_out.dtype == fp8
    stored = given["kv_cache"][40, 0, :32].float() * 0.5
    torch.testing.assert_close(stored, given["k_nope"][2, 0].float(), rtol=0.07, atol=0.02)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"slot_mapping": SLOTS[:2]}, SilentlyWrong, "left out"),
        ({"slot_mapping": SLOTS + 60}, SilentlyWrong, "slots reach"),
        ({"k_nope": normal(4, 1, 32)}, AssertionError, "batch"),
        ({"k_nope": normal(5, 1, 16)}, AssertionError, "D dimension|rows"),
        ({"q_pe": normal(3, 2, 16)}, AssertionError, "Q head"),
        ({"kv_cache": torch.zeros(64, 2, 48, dtype=BF16)}, AssertionError, "K head"),
        ({"pos": POSITIONS[::2]}, SilentlyWrong, "pos has strides"),
        ({"k_scale": torch.ones(2)}, AssertionError, "single"),
        ({"cos": table(4)[0]}, AssertionError, "cos/sin"),
        ({"slot_mapping": SLOTS.repeat_interleave(2)[::2]}, SilentlyWrong, "slot_mapping has strides"),
        ({"pos": POSITIONS + 1}, SilentlyWrong, "pos leaves"),
        ({"kv_cache": torch.zeros(64, 1, 48).to(OTHER_FP8)}, (AssertionError, SilentlyWrong), "BF16|not the fp8"),
    ],
)
def test_what_the_latent_triton_kernel_misreads(aiter: ModuleType, changes: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        triton().fused_qk_rope_cat_and_cache_mla(**latent_triton_arguments(**changes))


def test_the_query_is_not_written_over_keys(aiter: ModuleType):
    joined = normal(3, 1, 48)
    given = latent_triton_arguments(q_nope=normal(3, 1, 32), q_pe=normal(3, 1, 16), slot_mapping=SLOTS[[0, 2, 3]])
    given |= {"k_nope": joined[..., :32], "k_pe": joined[..., 32:], "q_out": joined}
    with pytest.raises(SilentlyWrong, match="share memory"):
        triton().fused_qk_rope_cat_and_cache_mla(**given)
