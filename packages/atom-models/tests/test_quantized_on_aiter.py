"""Tiny published checkpoints run on AITER's emulator, within what rounding activations leaves of the plain twin."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from aiter_calls import recorded_calls
from amd_machine import amd_machine
from atom_kernels.formats import Mxfp4, RowRounding
from atom_kernels.norm.rounded import rounded_add_rms_norm
from atom_models import BuildContext, load_model
from atom_models.groups import Groups
from atom_models.layers import Residual, RMSNorm
from atom_models.layers.norms.residual import Rounded
from atom_models.layers.rank_sum import RankSum
from quantized_checkpoints import PUBLISHED, write_quantized
from summing_aiter_ranks import in_order, on_ranks, parts_of
from tiny_architectures import make_tiny

QUARK = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
ROUNDED_FP4 = {
    "quant_method": "quark",
    "global_quant_config": {"weight": QUARK, "input_tensors": QUARK},
    "exclude": ["lm_head"],
}
# Layout -> the product of linears, and the largest share of the logits' size that may be wrong on average.
LAYOUTS = {
    "fp8 tiles": ("gemm_a8w8_blockscale_bpreshuffle", 0.13),
    "fp8 rows": ("gemm_a8w8_bpreshuffle", 0.13),
    "fp8 tensors": ("gemm_a8w8_bpreshuffle", 0.13),
    "int8 rows": ("gemm_a8w8", 0.045),
    "mxfp4": ("gemm_a4w4", 0.5),
}
_NORM, _ADD_NORM = "rmsnorm2d_fwd_with_dynamicquant", "rmsnorm2d_fwd_with_add_dynamicquant"
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def published(name):
    if name != "mxfp4":
        return PUBLISHED[name]
    quark = next(
        one for one in PUBLISHED.values() if one.config["quant_method"] == "quark" and one.weight_format == Mxfp4()
    )
    return replace(quark, config=ROUNDED_FP4)


def logits_on_amd(folder, arch):
    with amd_machine(arch), recorded_calls() as calls, torch.inference_mode():
        logits = load_model(folder, dtype="bfloat16", progress=False).logits([TOKENS])[0].float()
    return logits, set(calls.names)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_published_checkpoint_is_near_its_plain_twin_on_amd(name, arch, tmp_path):
    product, share = LAYOUTS[name]
    plain = make_tiny("llama", tmp_path / "llama", hidden_size=256, intermediate_size=256, num_hidden_layers=2)
    quantized, twin = write_quantized(tmp_path, plain, published(name))
    exact = load_model(twin, dtype="float32", progress=False).logits([TOKENS])[0]
    got, calls = logits_on_amd(quantized, arch)
    assert (product in calls) == (name != "mxfp4" or arch == "gfx950")
    error = (got - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt()
    # Without its product MXFP4 is not rounded at all.
    assert error < (share if product in calls else 0.02)


MXFP4_ROWS = "ATOM_AITER_MXFP4_ROWS"


@pytest.mark.parametrize(("arch", "asked"), [("gfx950", "1"), ("gfx950", "0"), ("gfx942", "1")])
def test_rows_that_a_checkpoint_in_mxfp4_leaves_as_they_are_get_rounded_where_that_is_asked_for(
    arch, asked, tmp_path, monkeypatch, caplog
):
    # The rows of queries, keys and values together are no multiple of 128, which one of the two products needs.
    heads = {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32}
    sizes = {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 2}
    plain = make_tiny("llama", tmp_path / "llama", **sizes, **heads)
    weights_alone = ROUNDED_FP4 | {"global_quant_config": {"weight": QUARK}}
    quantized, twin = write_quantized(tmp_path, plain, replace(published("mxfp4"), config=weights_alone))
    exact = load_model(twin, dtype="float32", progress=False).logits([TOKENS])[0]
    monkeypatch.setenv(MXFP4_ROWS, asked)
    got, calls = logits_on_amd(quantized, arch)
    rounds = (arch, asked) == ("gfx950", "1")
    products = {"gemm_a16wfp4", "gemm_a4w4"}
    assert products & calls == (products if rounds else set())
    error = (got - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt()
    assert (0.05 < error < 0.5) if rounds else error < 0.02
    told = [one.message for one in caplog.records if MXFP4_ROWS in one.message]
    assert len(told) == rounds


_QUANTIZERS = ("per_group_quant_hip", "per_token_quant_hip")
# Layout -> what rounds its rows: norms, the activation, and a quantizer behind attention.
ROUNDED_BY = {
    "fp8 tiles": {_NORM, _ADD_NORM, "silu_and_mul_quant", "per_group_quant_hip"},
    "fp8 rows": {_NORM, _ADD_NORM, "silu_and_mul", "per_token_quant_hip"},
}


@pytest.mark.parametrize("name", ROUNDED_BY)
def test_norms_and_activations_round_the_rows_of_the_products_behind_them(name, tmp_path):
    plain = make_tiny("llama", tmp_path / "llama", hidden_size=256, intermediate_size=256, num_hidden_layers=2)
    quantized, _ = write_quantized(tmp_path, plain, published(name))
    with amd_machine("gfx950"), recorded_calls() as calls, torch.inference_mode():
        load_model(quantized, dtype="bfloat16", progress=False).logits([TOKENS])
    operators = {_NORM, _ADD_NORM, "rmsnorm2d_fwd", "silu_and_mul", "silu_and_mul_quant", *_QUANTIZERS}
    # The last norm feeds a product of plain numbers.
    assert calls.names & operators == ROUNDED_BY[name]
    assert "rmsnorm2d_fwd_with_add" in calls.names


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_a_mixture_in_int4_with_rounded_rows_is_near_its_plain_twin_on_amd(arch, tmp_path):
    plain = make_tiny(
        "qwen3_moe", tmp_path / "plain", hidden_size=256, moe_intermediate_size=128, num_hidden_layers=2, head_dim=64
    )
    quantized, twin = write_quantized(tmp_path, plain, PUBLISHED["int4 rows"])
    exact = load_model(twin, dtype="float32", progress=False).logits([TOKENS])[0]
    got, calls = logits_on_amd(quantized, arch)
    assert "fused_moe" in calls
    error = (got - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt()
    assert error < 0.22


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
def test_a_mixture_in_fp8_is_near_its_plain_twin_on_amd(arch, tmp_path):
    plain = make_tiny(
        "qwen3_moe", tmp_path / "plain", hidden_size=256, moe_intermediate_size=128, num_hidden_layers=2, head_dim=64
    )
    quantized, twin = write_quantized(tmp_path, plain, PUBLISHED["fp8 tiles"])
    exact = load_model(twin, dtype="float32", progress=False).logits([TOKENS])[0]
    got, calls = logits_on_amd(quantized, arch)
    assert {"fused_moe", "gemm_a8w8_blockscale_bpreshuffle", "e8m0_shuffle"} & calls == {
        "fused_moe",
        "gemm_a8w8_blockscale_bpreshuffle",
    }
    error = (got - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt()
    # Rounded activations choose another expert here and there.
    assert error < 0.22


LATENT = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
    "q_lora_rank": 64,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
FP8_HEADS, FP4_HEADS = "ATOM_AITER_FP8_BMM", "ATOM_USE_TRITON_MXFP4_BMM"
# What rounds heads -> the product of heads on gfx942 and on gfx950.
FP8_PRODUCT = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
HEAD_PRODUCTS = {
    None: ("batched_gemm_bf16_CK", "batched_gemm_bf16_CK"),
    FP8_HEADS: (FP8_PRODUCT, FP8_PRODUCT),
    FP4_HEADS: ("batched_gemm_bf16_CK", "batched_gemm_a16wfp4"),
}


@pytest.mark.parametrize("name", ["fp8 tiles", "mxfp4"])
def test_latent_attention_of_a_published_checkpoint_rounds_heads_where_that_is_asked_for(
    name, tmp_path, monkeypatch, caplog
):
    plain = make_tiny("deepseek_v3", tmp_path / "plain", **LATENT)
    quantized, twin = write_quantized(tmp_path, plain, published(name))
    exact = load_model(twin, dtype="float32", progress=False).logits([TOKENS])[0]
    for variable, products in HEAD_PRODUCTS.items():
        for other in (FP8_HEADS, FP4_HEADS):
            monkeypatch.setenv(other, "1" if other == variable else "0")
        for arch, product in zip(("gfx942", "gfx950"), products, strict=True):
            caplog.clear()
            got, calls = logits_on_amd(quantized, arch)
            assert {one for one in calls if one.startswith("batched")} == {product}
            error = (got - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt()
            assert error < (0.5 if product == "batched_gemm_a16wfp4" or (name, arch) == ("mxfp4", "gfx950") else 0.25)
            told = [one.message for one in caplog.records if "latent attention multiplies heads in" in one.message]
            assert len(told) == (product != "batched_gemm_bf16_CK")


def test_a_norm_behind_a_sum_over_ranks_rounds_its_rows_in_the_kernel_that_sums(monkeypatch):
    monkeypatch.setattr("atom_kernels.aiter.all_reduce.MAX_BYTES", 1 << 20)
    rounding, parts = RowRounding(128, by_column=True), parts_of(3, 5, 512, torch.bfloat16)

    def build(ranks):
        context = BuildContext(dtype=torch.bfloat16, groups=Groups(ranks))
        feeds = SimpleNamespace(max_normed_rows=0, row_rounding=rounding)
        norm = RMSNorm(512, 1e-5, context, prefix="n", feeds=feeds)
        norm.load_shard("n.weight", torch.ones(512))
        norm.finish()
        return norm, RankSum(512, context)

    lock = threading.Lock()

    def work(rank):
        with lock:  # operators become known to torch in one thread at a time
            norm, rank_sum = build(rank)
        residual = Residual(parts[2]).plus(rank_sum(parts[rank.rank].clone()))
        rounded = norm(residual)
        wanted = rounded_add_rms_norm(in_order(parts[:2]), parts[2], torch.ones(512), 1e-5, rounding)
        return rounded, residual.tensor(), wanted

    with recorded_calls() as calls:
        results = on_ranks(2, work)
    assert calls.names & {"all_reduce", "fused_allreduce_rmsnorm", _ADD_NORM} == set()
    assert "fused_allreduce_rmsnorm_quant_per_group" in calls.names
    for rounded, total, (codes, scale, summed) in results:
        assert isinstance(rounded, Rounded)
        assert torch.equal(total, summed)
        torch.testing.assert_close(rounded.scale_TG, scale, rtol=0.01, atol=0)
        torch.testing.assert_close(rounded.codes_TD.float(), codes.float(), rtol=0.13, atol=1)
