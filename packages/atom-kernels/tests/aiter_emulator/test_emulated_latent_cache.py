"""Rotation and the cache of MLA in one kernel, emulated (git only)."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from rotation_by_hand import BF16, POSITIONS, close, normal, table, turned
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BLOCKS, BLOCK = 4, 16
SLOTS = torch.tensor([5, -1, 40, 63, 0])


def latent_arguments(**changes) -> dict:
    cos, sin = table(8)
    given = {
        "q_nope": normal(5, 3, 24),
        "q_pe": normal(5, 3, 16),
        "kv_c": normal(5, 24),
        "k_pe": normal(5, 16),
        "kv_cache": torch.zeros(BLOCKS, BLOCK, 40, dtype=BF16),
        "q_out": torch.full((5, 3, 40), torch.nan).to(BF16),
        "slot_mapping": SLOTS,
        "k_scale": torch.tensor([0.5]),
        "q_scale": torch.tensor([0.25]),
        "positions": POSITIONS,
        "cos_cache": cos,
        "sin_cache": sin,
        "is_neox": True,
        "is_nope_first": True,
    }
    return given | changes


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("nope_first", [True, False])
def test_latent_queries_and_keys_are_joined_and_turned(git_aiter: ModuleType, neox: bool, nope_first: bool):
    given = latent_arguments(is_neox=neox, is_nope_first=nope_first)
    git_aiter.fused_qk_rope_concat_and_cache_mla(**given)
    tables = given["cos_cache"], given["sin_cache"], neox
    query = [given["q_nope"].float(), turned(given["q_pe"], *tables)]
    key = [given["kv_c"].float(), turned(given["k_pe"][:, None], *tables)[:, 0]]
    query, key = (torch.cat(parts if nope_first else parts[::-1], -1) for parts in (query, key))
    kept = SLOTS >= 0
    close(given["q_out"][kept], query[kept])
    close(given["kv_cache"].view(-1, 40)[SLOTS[kept]], key[kept])
    assert given["q_out"][1].isnan().all()


def test_queries_without_a_slot_are_turned_on_demand(git_aiter: ModuleType):
    given = latent_arguments()
    git_aiter.fused_qk_rope_concat_and_cache_mla(**given, compute_all_q_rope=True)
    close(given["q_out"][1, :, :24], given["q_nope"][1])
    assert not given["q_out"].isnan().any()


def test_fp8_queries_and_keys_are_divided_by_their_scales(git_aiter: ModuleType):
    plain, fp8 = latent_arguments(), git_aiter.dtypes.fp8
    small = plain | {"kv_cache": plain["kv_cache"].to(fp8), "q_out": torch.zeros(5, 3, 40).to(fp8)}
    for given in (plain, small):
        git_aiter.fused_qk_rope_concat_and_cache_mla(**given, compute_all_q_rope=True)
    torch.testing.assert_close(small["q_out"].float() * 0.25, plain["q_out"].float(), rtol=0.07, atol=0.02)
    torch.testing.assert_close(small["kv_cache"].float() * 0.5, plain["kv_cache"].float(), rtol=0.07, atol=0.02)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"kv_c": normal(5, 16), "kv_cache": torch.zeros(BLOCKS, BLOCK, 32, dtype=BF16)}, Refused, "lora_rank"),
        ({"q_pe": normal(5, 2, 16)}, Refused, "other heads"),
        ({"q_out": torch.zeros(5, 3, 48, dtype=BF16)}, Refused, "R \\+ P"),
        ({"q_out": torch.zeros(5, 3, 40).to(torch.float8_e4m3fnuz)}, Refused, "needs an fp8 cache"),
        ({"kv_c": normal(24, 5).t()}, Refused, "without gaps"),
        ({"kv_cache": torch.zeros(BLOCKS, BLOCK, 40, dtype=torch.int8)}, Refused, "kv_cache"),
        ({"positions": POSITIONS.int()}, SilentlyWrong, "positions is"),
        ({"slot_mapping": SLOTS.int()}, SilentlyWrong, "slot_mapping is"),
        ({"positions": POSITIONS + 2}, SilentlyWrong, "positions leaves"),
        ({"cos_cache": table(8)[0].float()}, SilentlyWrong, "cos_cache is"),
        ({"sin_cache": table(4)[1]}, SilentlyWrong, "sin_cache rotates 8"),
        ({"q_nope": normal(4, 3, 24), "q_pe": normal(4, 3, 16)}, SilentlyWrong, "more slots"),
        ({"kv_c": normal(5, 2, 24)}, Refused, "one KV head"),
        ({"q_out": torch.zeros(5, 3, 40, dtype=torch.int8)}, Refused, "q_out"),
        ({"q_out": torch.zeros(5, 3, 40)}, SilentlyWrong, "q_out is"),
        ({"q_out": torch.zeros(5, 3, 80, dtype=BF16)[..., ::2]}, SilentlyWrong, "gaps"),
        ({"slot_mapping": SLOTS + 1}, SilentlyWrong, "slots reach"),
        ({"positions": POSITIONS.repeat_interleave(2)[::2]}, SilentlyWrong, "positions has strides"),
        ({"sin_cache": table(16)[1][:, ::2]}, SilentlyWrong, "sin_cache has strides"),
    ],
)
def test_what_the_latent_kernel_misreads(git_aiter: ModuleType, changes: dict, error: type, words: str):
    with pytest.raises(error, match=words):
        git_aiter.fused_qk_rope_concat_and_cache_mla(**latent_arguments(**changes))


def test_an_output_does_not_lie_in_the_query(git_aiter: ModuleType):
    joined = normal(5, 3, 40)
    with pytest.raises(SilentlyWrong, match="share memory"):
        git_aiter.fused_qk_rope_concat_and_cache_mla(
            **latent_arguments(q_out=joined, q_nope=joined[..., :24], q_pe=joined[..., 24:])
        )


@pytest.mark.parametrize("name", ["k_scale", "q_scale"])
def test_scales_are_one_float32(git_aiter: ModuleType, name: str):
    fp8 = git_aiter.dtypes.fp8
    small = {"kv_cache": torch.zeros(BLOCKS, BLOCK, 40).to(fp8), "q_out": torch.zeros(5, 3, 40).to(fp8)}
    with pytest.raises(SilentlyWrong, match="2 elements"):
        git_aiter.fused_qk_rope_concat_and_cache_mla(**latent_arguments(**small, **{name: torch.ones(2)}))
    with pytest.raises(SilentlyWrong, match="scale is"):
        git_aiter.fused_qk_rope_concat_and_cache_mla(**latent_arguments(**small, **{name: torch.ones(1).double()}))
