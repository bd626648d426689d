"""Keys and values in float8 e4m3: what is written, what is read back, and where their scales lie."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.cases import make_problem, make_step
from atom_kernels.attention.prologue import apply_prologue
from atom_kernels.mixers import CacheFormat, UnsupportedMixerError, select_mixer
from atom_kernels.native import native_unavailable
from atom_kernels.platform import Platform
from atom_kernels.protocols import CACHE_DTYPES

BACKENDS = [name for name in ("native", "reference") if name != "native" or native_unavailable() is None]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
native = pytest.mark.skipif("native" not in BACKENDS, reason="no C compiler")
every_kind_of_scale = pytest.mark.parametrize("scales", ["none", "head", "token_head"])
# Decodes around the borders of blocks, tiles and segments, short queries, and a chunk of a prompt.
MIXED = ((1, 1), (1, 64), (1, 65), (1, 257), (3, 530), (20, 20), (70, 300))
LARGEST = 448.0


def float8(*shape: int, dtype: str = "float32", **rules: object):
    return make_problem(*shape, dtype, kv_cache_dtype="float8_e4m3fn", **rules)


def attended_in_float64(problem, step, caches):
    """Attention over what `caches` say that they hold, by the definition."""
    q_THD, _ = apply_prologue(step.inputs[0], step.inputs[1], step.prologue)
    head_scales = [step.weights[name].double() for name in ("key_scale", "value_scale") if name in step.weights]
    kept = [cache.to(torch.float32).double() for cache in caches[:2]]
    factors = [cache.double() for cache in caches[2:]] or head_scales
    for index, factor in enumerate(factors):
        kept[index] = kept[index] * factor.unsqueeze(-1)
    keys, values = (x.flatten(0, 1).repeat_interleave(problem.group_size, dim=1) for x in kept)
    out, starts = [], step.geometry.query_start_loc.tolist()
    for request, length in enumerate(step.geometry.seq_lens.tolist()):
        blocks = step.geometry.block_table[request, : -(-length // problem.block_size)].long()
        slots = (blocks[:, None] * problem.block_size + torch.arange(problem.block_size)).flatten()[:length]
        queries = q_THD[starts[request] : starts[request + 1]].double()
        scores = torch.einsum("qhd,lhd->hql", queries, keys[slots]) * problem.scale
        position = torch.arange(length - len(queries), length)[:, None]
        scores = scores.masked_fill(torch.arange(length) > position, float("-inf"))
        out.append(torch.einsum("hql,lhd->qhd", scores.softmax(-1), values[slots]))
    return torch.cat(out)


@every_backend
@every_kind_of_scale
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 2e-2)])
@pytest.mark.parametrize("shape", [(6, 2, 64), (5, 1, 22)], ids=str)
def test_attention_is_that_of_the_dequantized_cache(backend, scales, dtype, tolerance, shape):
    problem = float8(*shape, dtype=dtype, scales=scales)
    step = make_step(problem, MIXED, scattered=True, rotary_dim=8, norms=True)
    out, *caches = step.run(select_mixer(problem, only_backend=backend))
    expected = attended_in_float64(problem, step, caches)
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@native
@every_kind_of_scale
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_kernels_write_the_bytes_of_the_reference(scales, dtype):
    problem = float8(4, 2, 44, dtype=dtype, scales=scales)
    step = make_step(problem, [(200, 200)])
    q, k, v = step.inputs
    # From numbers that vanish over the smallest subnormal ones to those that saturate.
    sizes = torch.logspace(-5, 4, 200)[:, None, None].to(k.dtype)
    k, v = k * sizes, v * sizes
    k[0, 0, :4] = torch.tensor([float("inf"), float("-inf"), 1e9, 0.0])
    if scales == "none":
        v[0, 0, :6] = torch.tensor([float("nan"), 464.0, 2**-10, 3 * 2**-10, 17.0, -0.0])
    step = replace(step, inputs=(q, k if scales != "token_head" else k.nan_to_num(1.0, 2.0, 3.0), v))
    written = [step.run(select_mixer(problem, only_backend=name))[1:] for name in ("native", "reference")]
    for got, expected in zip(*written, strict=True):
        assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


@every_backend
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_number_of_the_format_is_read_as_it_is(backend, dtype):
    """A request of one token gives its value back."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    problem = float8(1, 1, 256, dtype=dtype)
    step = make_step(problem, [(1, 1)])
    values = codes.to(step.inputs[0].dtype).view(1, 1, 256)
    out = replace(step, inputs=(*step.inputs[:2], values)).run(select_mixer(problem, only_backend=backend))[0]
    torch.testing.assert_close(out, values, atol=0, rtol=0, equal_nan=True)


@every_backend
def test_a_number_is_what_is_cached_times_the_scale_of_its_head(backend):
    problem = float8(2, 2, 16, scales="head")
    step = make_step(problem, [(1, 1)])
    scales = {"key_scale": torch.tensor([1.0, 1.0]), "value_scale": torch.tensor([0.25, 4.0])}
    step = replace(step, weights=scales, inputs=(*step.inputs[:2], torch.full((1, 2, 16), 1200.0)))
    out, _, values = step.run(select_mixer(problem, only_backend=backend))
    block = int(step.geometry.block_table[0, 0])
    assert values[block, 0, :, 0].tolist() == [LARGEST, 288.0]  # the one saturates, the other is rounded
    assert out[0, :, 0].tolist() == [LARGEST / 4, 1152.0]


@every_backend
def test_a_token_and_head_has_the_scale_that_makes_its_largest_number_the_largest_of_the_format(backend):
    problem = float8(2, 2, 16, scales="token_head")
    step = make_step(problem, [(20, 20)])
    keys, values = step.inputs[1], step.inputs[2].clone()
    values[3] = 0
    step = replace(step, inputs=(*step.inputs[:2], values))
    _, _, _, key_scale, value_scale = step.run(select_mixer(problem, only_backend=backend))
    blocks = step.geometry.block_table[0, :2].long()
    torch.testing.assert_close(key_scale[blocks].flatten(0, 1)[:20], keys.abs().amax(-1) / LARGEST)
    assert value_scale[blocks].flatten(0, 1)[3].tolist() == pytest.approx([1e-6, 1e-6])


@every_backend
@every_kind_of_scale
def test_tokens_cached_by_another_request_give_the_same_bits_as_computing_them_anew(backend, scales):
    """A hit of the prefix cache: the last tokens alone, over blocks that a whole prompt has filled."""
    problem = float8(6, 2, 32, scales=scales)
    plan = select_mixer(problem, only_backend=backend)
    whole, rest = make_step(problem, [(300, 300)]), make_step(problem, [(44, 300)])
    rest = replace(rest, inputs=tuple(x[256:] for x in whole.inputs), weights=whole.weights)
    caches, weights = whole.caches_for(plan), plan.prepare(whole.weights)
    miss = whole.run_in_place(plan, caches, weights=weights)
    kept = [cache.clone() for cache in caches]
    hit = rest.run_in_place(plan, caches, weights=weights)
    torch.testing.assert_close(hit, miss[256:], atol=0 if backend == "native" else 1e-6, rtol=0)
    for cache, before in zip(caches, kept, strict=True):
        assert torch.equal(cache.view(torch.uint8), before.view(torch.uint8))


@native
@every_kind_of_scale
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_request_gets_the_same_bits_alone_and_in_a_batch(scales, dtype):
    problem = float8(6, 2, 64, dtype=dtype, scales=scales)
    step = make_step(problem, MIXED, scattered=True, rotary_dim=64)
    plan = select_mixer(problem, only_backend="native")
    weights = plan.prepare(step.weights)
    together = step.run_in_place(plan, step.caches_for(plan), weights=weights)
    starts, geometry = step.geometry.query_start_loc.tolist(), step.geometry
    for request in (1, 4, 6):
        rows = slice(starts[request], starts[request + 1])
        alone = replace(
            geometry,
            query_start_loc=torch.tensor([0, rows.stop - rows.start], dtype=torch.int32),
            seq_lens=geometry.seq_lens[request : request + 1],
            block_table=geometry.block_table[request : request + 1],
            slot_mapping=geometry.slot_mapping[rows],
            num_reqs=1,
            num_tokens=rows.stop - rows.start,
        )
        prologue = replace(step.prologue, positions=step.prologue.positions[rows])
        part = replace(step, inputs=tuple(x[rows] for x in step.inputs), geometry=alone, prologue=prologue)
        assert torch.equal(part.run_in_place(plan, step.caches_for(plan), weights=weights), together[rows])


def test_the_scales_of_tokens_are_counted_in_the_bytes_of_a_block():
    plain, scaled = (float8(4, 2, 32, scales=kind).layout for kind in ("none", "token_head"))
    assert [tensor.name for tensor in scaled.tensors] == ["key", "value", "key_scale", "value_scale"]
    assert scaled.block_bytes - plain.block_bytes == 2 * 16 * 2 * 4


def test_every_word_of_users_asks_for_a_format_of_the_model_or_of_the_platform():
    names = {word: CacheFormat.asked(word, "float32", "float8_e4m3fnuz").name for word in CACHE_DTYPES}
    assert names == {
        "auto": "float32",
        "bf16": "bfloat16",
        "fp8": "float8_e4m3fnuz",
        "fp8_per_token_head": "float8_e4m3fnuz_per_token_head",
    }


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (("float64",), "kv_cache_dtype is 'float64'; give one of float32"),
        (("float8_e4m3fn", "row"), "scales is 'row'; give one of none, head, token_head"),
        (("bfloat16", "head"), "a cache of bfloat16 has no scales"),
    ],
)
def test_a_format_that_makes_no_sense_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        CacheFormat(*fields)


def test_a_backend_that_reads_no_scales_says_so():
    with pytest.raises(UnsupportedMixerError, match="torch: reads a cache with scales none, not with scales head"):
        select_mixer(float8(4, 2, 32, scales="head"), only_backend="torch")


def test_prompts_on_hopper_tell_why_their_own_kernel_reads_no_cache_in_float8():
    """The kernel of a plan is Triton's other one; over a plain cache nothing is passed over."""
    problem = make_problem(32, 8, 128, "bfloat16")
    scaled = replace(problem, cache=CacheFormat("float8_e4m3fn", "token_head"))
    platform = Platform.nvidia("sm_90")
    names = [
        [name for name, _ in select_mixer(one, platform, only_backend="triton").reasons] for one in (problem, scaled)
    ]
    assert names == [[], ["triton, prompts on Hopper"]]
