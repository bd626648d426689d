"""Problems of layers with a cache: what they may be, word for word, and what follows from them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.index.ops import LIGHTNING_INDEX
from atom_kernels.attention.index.problem import IndexProblem
from atom_kernels.attention.mla.ops import LATENT_ATTENTION
from atom_kernels.attention.mla.problem import MlaProblem
from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
from atom_kernels.attention.sparse.ops import SPARSE_LATENT_ATTENTION
from atom_kernels.attention.sparse.problem import SparseMlaProblem
from atom_kernels.mixers import CacheFormat, UnsupportedMixerError, select_mixer
from atom_kernels.mixers.backend import MixerBackend, UnsuitableBackendError, reads_any_strides
from atom_kernels.mixers.cache_format import ALL_SCALES, SMALLEST_SCALE, token_scales
from atom_kernels.mixers.plan import usable_plans
from atom_kernels.platform import detect_platform
from atom_kernels.protocols import CacheLayout
from atom_kernels.protocols.cache_format import CACHE_DTYPES

PLAIN = CacheFormat("bfloat16")
PROBLEM = AttentionProblem(8, 2, 64, 0.125, "bfloat16", PLAIN, 16)


def test_a_problem_has_no_rules_unless_they_are_given():
    assert (PROBLEM.sliding_window, PROBLEM.has_sinks, PROBLEM.soft_cap, PROBLEM.batch_invariant) == (
        *(None, False, None, False),
    )
    assert (PROBLEM.group_size, PROBLEM.kv_cache_dtype, PROBLEM.out_shape) == (4, "bfloat16", (8, 64))
    assert PROBLEM.keeps.window is None
    assert replace(PROBLEM, sliding_window=7).keeps.window == 7
    assert PROBLEM.weights == {}
    assert (PROBLEM.layout.name, PROBLEM.layout.block_size) == ("nhd", 16)
    assert [(one.name, one.shape, one.dtype) for one in PROBLEM.layout.tensors] == [
        ("key", (16, 2, 64), "bfloat16"),
        ("value", (16, 2, 64), "bfloat16"),
    ]
    positions = torch.arange(3)
    prologue = AttentionPrologue(positions, norm_eps=1e-6)
    assert (prologue.cos_sin_cache, prologue.interleaved, prologue.q_norm_weight, prologue.k_norm_weight) == (
        *(None, False, None, None),
    )


@pytest.mark.parametrize(
    ("allowed", "refused", "message"),
    [
        *[
            ({}, {name: 0}, f"AttentionProblem.{name} is 0; it must be at least 1")
            for name in ("num_heads", "num_kv_heads", "head_dim", "block_size")
        ],
        ({"num_heads": 1, "num_kv_heads": 1, "head_dim": 1, "block_size": 1}, {"num_heads": 9}, None),
        ({"dtype": "float32"}, {"dtype": "int3"}, None),
        ({"scale": 1e-9}, {"scale": 0.0}, "AttentionProblem.scale is 0.0; it must be positive"),
        ({"scale": 2.0}, {"scale": float("nan")}, "AttentionProblem.scale is nan; it must be positive"),
        (
            {"sliding_window": 1},
            {"sliding_window": 0},
            "AttentionProblem.sliding_window is 0; it must be at least 1 or None",
        ),
        ({"soft_cap": 1e-9}, {"soft_cap": 0.0}, "AttentionProblem.soft_cap is 0.0; it must be positive or None"),
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_problem_that_cannot_be_is_told(allowed, refused, message):
    replace(PROBLEM, **allowed)
    with pytest.raises(ValueError) as caught:
        replace(PROBLEM, **refused)
    told = str(caught.value)
    if "num_heads" in refused and message is None:
        message = "AttentionProblem.num_heads 9 is not a multiple of num_kv_heads 2"
    if "dtype" in refused:
        assert told.startswith("AttentionProblem.dtype is 'int3'; give one of ")
    else:
        assert told == message


def test_a_problems_weights_are_its_sinks_and_its_scales():
    weights = replace(PROBLEM, has_sinks=True, cache=CacheFormat("float8_e4m3fn", "head")).weights
    assert {name: (spec.shape, spec.dtype) for name, spec in weights.items()} == {
        "sinks": ((8,), torch.bfloat16),
        "key_scale": ((2,), torch.float32),
        "value_scale": ((2,), torch.float32),
    }
    assert replace(PROBLEM, cache=CacheFormat("float8_e4m3fn", "token_head")).weights == {}


def test_a_cache_of_float8_may_have_scales():
    assert ALL_SCALES == ("none", "head", "token_head")
    assert CacheFormat("bfloat16").scales == "none"
    asked = [CacheFormat.asked(word, "float16", "float8_e4m3fn") for word in CACHE_DTYPES]
    assert CACHE_DTYPES == ("auto", "bf16", "fp8", "fp8_per_token_head")
    assert asked == [
        CacheFormat("float16"),
        CacheFormat("bfloat16"),
        CacheFormat("float8_e4m3fn"),
        CacheFormat("float8_e4m3fn", "token_head"),
    ]
    tensors = CacheFormat("float8_e4m3fn", "token_head").tensors({"key": (16, 2, 64)})
    assert [(one.name, one.shape, one.dtype) for one in tensors] == [
        ("key", (16, 2, 64), "float8_e4m3fn"),
        ("key_scale", (16, 2), "float32"),
    ]
    assert len(CacheFormat("float8_e4m3fn", "head").tensors({"key": (16, 2, 64)})) == 1
    for given, told in (
        (("int3",), "kv_cache_dtype is 'int3'; give one of "),
        (("float8_e4m3fn", "row"), "CacheFormat.scales is 'row'; give one of none, head, token_head"),
        (("bfloat16", "head"), "a cache of bfloat16 has no scales; float8_e4m3fn and float8_e4m3fnuz may have them"),
    ):
        with pytest.raises(ValueError) as caught:
            CacheFormat(*given)
        assert str(caught.value).startswith(told)


def test_a_scale_of_a_token_makes_its_largest_number_the_largest_of_the_format():
    x = torch.tensor([[-896.0, 1.0], [0.0, 0.0]])
    scales = token_scales(x, torch.float8_e4m3fn)
    assert scales.shape == (2, 1)
    assert scales[:, 0].tolist() == [2.0, pytest.approx(SMALLEST_SCALE)]
    assert SMALLEST_SCALE == 1e-6


def test_the_first_backend_that_fits_runs_a_layer_and_the_others_are_told():
    names = [backend.name for backend in PROBLEM.backends]
    plan = select_mixer(PROBLEM)
    assert plan.backend in names
    assert [name for name, _ in plan.reasons] == names[: names.index(plan.backend)]
    assert plan.layout == PROBLEM.layout
    assert plan.runner is plan.runner
    assert [one.backend for one in usable_plans(PROBLEM)] == [
        name for name in names if name in {usable.backend for usable in usable_plans(PROBLEM)}
    ]
    assert select_mixer(PROBLEM, only_backend="reference").backend == "reference"
    with pytest.raises(UnsupportedMixerError, match=r": 'x' is not one of .*torch"):
        select_mixer(PROBLEM, only_backend="x")
    assert select_mixer(PROBLEM, offered=[PROBLEM.layout]).layout == PROBLEM.layout
    with pytest.raises(UnsupportedMixerError, match="attention needs the cache layout nhd of 16 tokens .* offers none"):
        select_mixer(PROBLEM, offered=[])
    other = replace(PROBLEM, block_size=32).layout
    with pytest.raises(UnsupportedMixerError, match="the host offers nhd of 32 tokens, nhd of 32 tokens$"):
        select_mixer(PROBLEM, offered=[other, other])


def agree(problem, offered, usual, **overrides):
    """The layout of a backend that reads another one than the usual."""
    backend = MixerBackend(name="torch", create=lambda *_: None, layouts=lambda *_: (OTHER,), **overrides)
    return backend.agree_on_layout(problem, detect_platform(), offered, usual)


OTHER = CacheLayout("other", 16, ())
SPREAD = CacheLayout("nhd", 16, tuple(replace(one, strides=(9, 9, 9)) for one in PROBLEM.layout.tensors))


def test_a_backend_whose_layouts_no_host_offers_is_refused_by_their_names():
    usual = PROBLEM.layout
    assert agree(PROBLEM, None, usual) is agree(PROBLEM, (usual, OTHER), usual) is agree(PROBLEM, (), OTHER) is OTHER
    with pytest.raises(UnsuitableBackendError, match="^reads the layout other, which the host does not offer$"):
        agree(PROBLEM, (usual,), usual)


def test_a_backend_of_contiguous_blocks_is_refused_where_they_are_not():
    assert agree(PROBLEM, (SPREAD,), SPREAD, why_not_strided=reads_any_strides) is SPREAD
    with pytest.raises(UnsuitableBackendError, match="^reads contiguous blocks only$"):
        agree(PROBLEM, (SPREAD,), SPREAD)


def test_a_backend_that_reads_no_such_scales_is_refused():
    scaled = replace(PROBLEM, cache=CacheFormat("float8_e4m3fn", "head"))
    assert agree(scaled, None, scaled.layout, cache_scales=("head",)) is OTHER
    with pytest.raises(UnsuitableBackendError, match="reads a cache with scales none, not with scales head"):
        agree(scaled, None, scaled.layout)


def test_problems_of_latents_and_positions_are_described_by_their_sizes():
    heads = "4 heads of 16 + 8, 12, latents of 32, bfloat16, blocks of 16"
    assert LATENT_ATTENTION.describe(LATENT) == heads
    assert SPARSE_LATENT_ATTENTION.describe(SparseMlaProblem.of(LATENT, 7)) == f"{heads}, 7 positions"
    index = IndexProblem(num_heads=4, head_dim=32, rotary_dim=8, top_k=7, scale=0.1, dtype="bfloat16", block_size=16)
    assert LIGHTNING_INDEX.describe(index) == "4 heads of 32, 7 positions, bfloat16, blocks of 16"


LATENT = MlaProblem(4, 32, 16, 8, 12, 0.2, "bfloat16", PLAIN, 16)
LATENT_SIZES = ("num_heads", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "block_size")


def test_a_problem_of_latents_has_the_sizes_of_its_parts():
    assert (LATENT.query_dim, LATENT.latent_dim, LATENT.out_shape) == (24, 40, (4, 12))
    assert [(one.name, one.shape) for one in LATENT.layout.tensors] == [("latent", (16, 40))]
    assert (LATENT.layout.name, LATENT.layout.block_size, LATENT.keeps.window) == ("latent", 16, None)
    assert {name: spec.shape for name, spec in LATENT.weights.items()} == {"kv_b": (112, 32)}
    scaled = replace(LATENT, cache=CacheFormat("float8_e4m3fn", "head")).weights
    assert {name: (spec.shape, spec.dtype) for name, spec in scaled.items()} == {
        "kv_b": ((112, 32), torch.bfloat16),
        "latent_scale": ((1,), torch.float32),
    }


@pytest.mark.parametrize("name", LATENT_SIZES)
def test_a_size_of_latents_is_at_least_one(name):
    with pytest.raises(ValueError) as caught:
        replace(LATENT, **{name: 0})
    assert str(caught.value) == f"MlaProblem.{name} is 0; it must be at least 1"
    if name == "qk_rope_head_dim":
        with pytest.raises(ValueError, match="MlaProblem.qk_rope_head_dim is 1; pairs are rotated: it must be even"):
            replace(LATENT, qk_rope_head_dim=1)
        assert replace(LATENT, qk_rope_head_dim=2).query_dim == 18
    else:
        assert getattr(replace(LATENT, **{name: 1}), name) == 1
    with pytest.raises(ValueError, match="MlaProblem.dtype is 'int3'; give one of "):
        replace(LATENT, dtype="int3")
