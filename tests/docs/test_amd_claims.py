"""What docs/amd.md says in sentences of who serves what on AMD Instinct, and of recipes, is so."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atom_core import EngineArgs
from atom_kernels.activation import Activation, GatedActivationProblem
from atom_kernels.activation.ops import GATED_ACTIVATION
from atom_kernels.aiter.functions import FUNCTIONS
from atom_kernels.attention import AttentionProblem
from atom_kernels.attention.mla import MlaProblem
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.mixers import CacheFormat, MixerPlan, select_mixer
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.plan import PlanRow
from atom_kernels.platform import AITER_ARCHES, Platform
from atom_kernels.select import select
from atom_server.cli.main import build_parser

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "amd.md").read_text()
WORDS = " ".join(PAGE.split())
PLAIN = AttentionProblem(
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    scale=128**-0.5,
    dtype="bfloat16",
    cache=CacheFormat("bfloat16"),
    block_size=16,
)
LATENT = MlaProblem(
    num_heads=16, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, scale=0.1,
    dtype="bfloat16", cache=CacheFormat("bfloat16"), block_size=16,
)  # fmt: skip
EXPERTS = ExpertsProblem(32, 4, 1024, 512, torch.bfloat16)


@pytest.fixture(params=AITER_ARCHES)
def platform(request: pytest.FixtureRequest) -> Platform:
    return Platform.rocm(request.param, release="git")


def attention(platform: Platform, **fields: object) -> MixerPlan:
    return select_mixer(replace(PLAIN, **fields), platform)


def test_plain_heads_are_decoded_by_the_assembly_over_both_kinds_of_cache(platform: Platform):
    assert "`pa_fwd_asm` decodes over blocks of keys and values in the order of its assembly" in WORDS
    assert "pa_fwd_asm" in attention(platform).kernels
    assert "from a cache in bfloat16 or float8; prompts over a float8 cache are gathered" in WORDS
    assert attention(platform, cache=CacheFormat(platform.float8)).kernels == ("pa_fwd_asm", "flash_attn_varlen_func")


@pytest.mark.parametrize(
    "fields", [{"has_sinks": True}, {"sliding_window": 128}, {"soft_cap": 50.0}, {"head_dim": 64, "scale": 0.125}]
)
def test_other_heads_are_served_by_unified_attention(platform: Platform, fields: dict[str, object]):
    assert "With sinks, a window, a soft cap or heads of other sizes than 128 `unified_attention` serves" in WORDS
    assert "unified_attention" in attention(platform, **fields).kernels


def test_latents_in_float8_are_aiters_over_one_scale_of_a_layer(platform: Platform):
    assert "*Latents* in float8 have one scale for a layer: `mla_decode_fwd` reads them in place" in WORDS
    for scales in ("none", "head"):
        plan = select_mixer(replace(LATENT, cache=CacheFormat(platform.float8, scales)), platform)
        assert plan.backend == "aiter"
        assert "mla_decode_fwd" in plan.kernels
    assert "our Triton kernels serve" in WORDS
    other = replace(LATENT, kv_lora_rank=256, cache=CacheFormat(platform.float8))
    assert select_mixer(other, platform).backend == "triton"


def test_scales_of_tokens_are_the_assemblys_and_our_kernels_elsewhere(platform: Platform):
    assert "`pa_fwd_asm` also reads caches with a scale for each token and head" in WORDS
    tokens, heads = (CacheFormat(platform.float8, scales) for scales in ("token_head", "head"))
    assert attention(platform, cache=tokens).layout.name == "shuffled_scaled"
    assert "Our Triton kernels serve where other models or latents have a scale for each token and head" in WORDS
    assert attention(platform, cache=tokens, has_sinks=True).backend == "triton"
    assert select_mixer(replace(LATENT, cache=tokens), platform).backend == "triton"
    assert "and where checkpoints have one for each head of keys and values" in WORDS
    assert attention(platform, cache=heads).backend == "triton"


def linear_backend(platform: Platform, dtype: torch.dtype, out_dtype: torch.dtype | None = None) -> str:
    [row] = linear_rows(platform, dtype, out_dtype)
    return row.backend


def linear_rows(platform: Platform, dtype: torch.dtype, out_dtype: torch.dtype | None = None) -> tuple[PlanRow, ...]:
    return select(LINEAR, LinearProblem(1024, 4096, dtype, out_dtype=out_dtype), platform).rows


def test_linears_are_aiters_but_where_float32_goes_in(platform: Platform):
    assert "Norms, gated activations, rotation, plain linears and the output head are AITER's kernels" in WORDS
    assert "Where float32 goes in, Triton multiplies few rows and torch more" in WORDS
    assert linear_backend(platform, torch.bfloat16) == "aiter"
    assert linear_backend(platform, torch.bfloat16, torch.float32) == "aiter"
    few, more = linear_rows(platform, torch.float32)
    assert (few.implementation, more.implementation) == (
        "Triton, the weight passes once",
        "torch linear between Triton kernels",
    )


def test_batch_invariant_engines_attend_and_multiply_in_triton(platform: Platform):
    invariant = replace(platform, batch_invariant=True)
    assert attention(invariant).backend == linear_backend(invariant, torch.bfloat16) == "triton"
    [row] = select(MOE_EXPERTS, replace(EXPERTS, batch_invariant=True), invariant).rows
    assert row.backend == "triton"
    assert "with `--batch-invariant`, under which latent attention is torch's" in WORDS
    assert select_mixer(LATENT, invariant).backend == "torch"


def test_attention_in_float32_is_tritons(platform: Platform):
    assert "attention and experts in float32" in WORDS
    assert attention(platform, dtype="float32", cache=CacheFormat("float32")).backend == "triton"


def test_gated_activations_are_aiters_but_for_that_of_gpt_oss(platform: Platform):
    for activation, backend in (
        (Activation.SILU, "aiter"),
        (Activation.GELU, "aiter"),
        (Activation.SWIGLU_OAI, "triton"),
    ):
        problem = GatedActivationProblem(2880, torch.bfloat16, activation)
        assert [row.backend for row in select(GATED_ACTIVATION, problem, platform).rows] == [backend]


def test_the_release_on_pypi_lacks_what_the_page_says():
    [row] = [line for line in PAGE.splitlines() if line.startswith("| `pip install amd-aiter`")]
    old = Platform.rocm("gfx942", release="pypi")
    assert "`pa_fwd_asm` over a cache in bfloat16 (`unified_attention` serves)" in row
    assert "unified_attention" in attention(old).kernels
    assert "latent attention of more than 112 heads (Triton serves)" in row
    assert [select_mixer(replace(LATENT, num_heads=n), old).backend for n in (112, 128)] == ["aiter", "triton"]
    assert not {name for name in FUNCTIONS if "gluon" in name or "persistent" in name}
    assert "No adapter calls `pa_decode_gluon` or `pa_persistent_fwd`" in WORDS


def recipes() -> list[list[str]]:
    commands = re.findall(r"`(?:ATOM_\w+=1 )?atom (serve [^`]+)`", PAGE.partition("## Recipes")[2])
    assert len(commands) == 3
    return [shlex.split(command) for command in commands]


def test_the_settings_of_the_recipes_are_taken():
    found = [EngineArgs.from_cli_args(build_parser().parse_args(recipe), leave_out={"port"}) for recipe in recipes()]
    assert [args.tensor_parallel_size for args in found] == [8, 4, 8]
    assert [args.enable_expert_parallel for args in found] == [True, False, False]
