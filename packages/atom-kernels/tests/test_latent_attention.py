"""What latent attention over pages must give, and what a row's result must not depend on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.attention.mla import MlaProblem, latent_attention
from atom_kernels.attention.mla.cases import make_problem, make_step
from atom_kernels.attention.mla.native_steps import expands, plan_step
from atom_kernels.mixers import CacheFormat, UnsupportedMixerError, select_mixer
from atom_kernels.mixers.cases import make_geometry
from atom_kernels.mixers.plan import usable_plans
from atom_kernels.operator import Work
from atom_kernels.protocols import BatchGeometry, CacheLayout
from attention_in_chunks import attend_in_chunks

SHAPE = (6, 48, 24, 16, 20)
DTYPES = ("float32", "bfloat16")
USABLE = {dtype: [plan.backend for plan in usable_plans(make_problem(*SHAPE, dtype))] for dtype in DTYPES}
BACKENDS = USABLE["float32"]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_case = pytest.mark.parametrize(
    ("backend", "dtype"), [(name, dtype) for dtype in DTYPES for name in USABLE[dtype]]
)
needs_native = pytest.mark.skipif("native" not in BACKENDS, reason="no native kernels here")
needs_native_bf16 = pytest.mark.skipif("native" not in USABLE["bfloat16"], reason="no native kernels in bfloat16 here")
NUM_TOKENS = 600


def attend(plan, step, ends, *, scattered=True):
    def inputs_of(chunk):
        prologue = replace(step.prologue, positions=step.prologue.positions[chunk])
        return (step.inputs[0][chunk], step.inputs[1][chunk]), prologue

    return attend_in_chunks(plan, step.weights, inputs_of, ends=ends, scattered=scattered)


def test_the_reference_is_softmax_attention_with_the_keys_and_values_that_latents_stand_for():
    problem = make_problem(*SHAPE)
    step = make_step(problem, [(7, 7)], prologue=False)
    out = step.run(select_mixer(problem, only_backend="reference"))[0]
    latent, rotary_key = step.inputs[1].split([problem.kv_lora_rank, problem.qk_rope_head_dim], dim=1)
    expanded = (latent @ step.weights["kv_b"].T).view(7, problem.num_heads, -1)
    k, v = expanded.split([problem.qk_nope_head_dim, problem.v_head_dim], dim=2)
    k = torch.cat((k, rotary_key.unsqueeze(1).expand(-1, problem.num_heads, -1)), dim=2)
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (step.inputs[0], k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out, expected[0].transpose(0, 1), atol=1e-5, rtol=1e-5)


def test_the_contract_can_be_called_without_a_plan():
    problem = make_problem(*SHAPE)
    step = make_step(problem, [(2, 6), (9, 40)], prologue=False)
    out, cache = step.run(select_mixer(problem, only_backend="reference"))
    geometry = step.geometry
    again = latent_attention(
        step.inputs[0],
        (cache,),
        step.weights["kv_b"],
        geometry.query_start_loc,
        geometry.seq_lens,
        geometry.block_table,
        v_head_dim=problem.v_head_dim,
        scale=problem.scale,
    )
    assert torch.equal(again, out)


@every_case
def test_rows_of_no_request_are_zeros(backend, dtype):
    problem = make_problem(*SHAPE, dtype)
    step = make_step(problem, [(1, 5), (30, 30), (2, 7)], prologue=False)
    plan = select_mixer(problem, only_backend=backend)
    q, kv = (torch.cat((x, torch.full_like(x[:2], float("nan")))) for x in step.inputs)
    cache = tuple(cache.clone() for cache in step.caches)
    out = plan.forward((q, kv), cache, plan.build_metadata(step.geometry), weights=plan.prepare(step.weights))
    assert torch.equal(out[:33], step.run(plan)[0])
    assert out[33:].abs().max() == 0


@every_case
def test_nothing_past_the_end_of_a_request_is_read(backend, dtype):
    problem = make_problem(*SHAPE, dtype, block_size=8)
    step = make_step(problem, [(1, 70), (40, 130)])
    plan = select_mixer(problem, only_backend=backend)
    clean = step.run(plan)[0]
    flat = step.caches[0].flatten(0, 1)
    for request, length in enumerate([70, 130]):
        first = int(step.geometry.block_table[request, 0]) * 8
        flat[first + length : first + -(-length // 8) * 8] = float("nan")
    assert torch.equal(step.run(plan)[0], clean)


@every_backend
def test_a_slot_of_minus_one_writes_nothing(backend):
    problem = make_problem(*SHAPE)
    step = make_step(problem, [(3, 9)])
    step.geometry.slot_mapping[1] = -1
    cache = step.run(select_mixer(problem, only_backend=backend))[1].flatten(0, 1)
    changed = (cache != step.caches[0].flatten(0, 1)).any(dim=1).nonzero().flatten().tolist()
    assert changed == [6, 8]


@needs_native
def test_chunks_and_single_tokens_give_the_same_bits_as_the_whole_prompt_in_float32():
    plan = select_mixer(make_problem(*SHAPE), only_backend="native")
    step = make_step(plan.problem, [(NUM_TOKENS, NUM_TOKENS)])
    whole = attend(plan, step, [NUM_TOKENS])
    assert not whole.isnan().any()
    for ends in ([1, 3, 258, NUM_TOKENS], [64, 513, NUM_TOKENS], [560, *range(561, NUM_TOKENS + 1)]):
        assert torch.equal(attend(plan, step, ends, scattered=len(ends) > 3), whole)


@every_case
def test_chunks_agree_with_the_whole_prompt_to_rounding(backend, dtype):
    plan = select_mixer(make_problem(*SHAPE, dtype), only_backend=backend)
    step = make_step(plan.problem, [(NUM_TOKENS, NUM_TOKENS)])
    whole = attend(plan, step, [NUM_TOKENS])
    tolerance = 2e-5 if dtype == "float32" else 3e-2
    chunked = attend(plan, step, [1, 3, 258, 300, NUM_TOKENS])
    torch.testing.assert_close(chunked, whole, atol=tolerance, rtol=tolerance)


@every_case
def test_a_request_gets_the_same_bits_alone_and_in_any_batch(backend, dtype):
    problem = make_problem(*SHAPE, dtype)
    plan = select_mixer(problem, only_backend=backend)
    requests = [(1, 5), (1, 600), (2, 300), (40, 310), (30, 30), (3, 9), (300, 300), (1, 256)]
    step = make_step(problem, requests, scattered=True)
    assert step.prologue is not None
    weights, cache = plan.prepare(step.weights), step.caches
    together = step.run_in_place(plan, cache, weights=weights)
    for index, (queries, length) in enumerate(requests):
        first, last = step.geometry.query_start_loc[index : index + 2].tolist()
        geometry = BatchGeometry(
            query_start_loc=torch.tensor([0, queries], dtype=torch.int32),
            seq_lens=step.geometry.seq_lens[index : index + 1],
            block_table=step.geometry.block_table[index : index + 1],
            slot_mapping=step.geometry.slot_mapping[first:last],
            num_reqs=1,
            num_tokens=queries,
            num_decodes=int(queries == 1),
            max_query_len=queries,
            max_seq_len=length,
        )
        alone = replace(
            step,
            inputs=tuple(x[first:last] for x in step.inputs),
            geometry=geometry,
            prologue=replace(step.prologue, positions=step.prologue.positions[first:last]),
        )
        assert torch.equal(alone.run_in_place(plan, cache, weights=weights), together[first:last])


@needs_native_bf16
def test_prompts_that_are_expanded_piece_by_piece_agree_with_the_reference():
    from atom_kernels.attention.mla.native_backend import NativeMla

    problem = make_problem(*SHAPE, "bfloat16")
    # Later chunks that begin within, before and behind the borders of pieces, among whole prompts and decodes.
    requests = [(1, 40), (300, 900), (20, 520), (600, 600), (3, 30), (256, 512), (17, 17)]
    step = make_step(problem, requests, scattered=True)
    plan = select_mixer(problem, only_backend="native")
    by_pieces = replace(plan, create=lambda: NativeMla(problem, expanded_elements=1))
    assert len(by_pieces.build_metadata(step.geometry).expanded[1]) > 4
    expected = step.run(select_mixer(problem, only_backend="reference"))[0]
    torch.testing.assert_close(step.run(by_pieces)[0], expected, atol=4e-2, rtol=4e-2)
    torch.testing.assert_close(step.run(plan)[0], expected, atol=4e-2, rtol=4e-2)


def test_a_request_is_expanded_where_that_costs_less():
    problem = make_problem(16, 512, 128, 64, 128, "bfloat16")
    assert expands(problem, 512, 512)
    assert expands(problem, 1024, 8192)
    assert not expands(problem, 1, 512)
    assert not expands(problem, 32, 8192)
    assert not expands(make_problem(16, 512, 128, 64, 128), 512, 512)
    # What 100 queries save of 768 numbers a pair is worth 71 keys of others, of 131072 each, and not 72.
    assert [expands(problem, 100, 100 + others) for others in (71, 72)] == [True, False]


def test_as_many_requests_are_expanded_together_as_have_room():
    problem = make_problem(16, 512, 128, 64, 128, "bfloat16")
    room = 512 * 16 * (128 + 64 + 128)

    def rounds(*lengths: int) -> list[int]:
        """The keys of each round."""
        geometry, _ = make_geometry([(length, length) for length in lengths], problem.block_size)
        expanded = plan_step(problem, geometry, room).expanded
        assert expanded is not None
        return [len(one.slots) for one in expanded[1]]

    assert rounds(256, 256) == [512]
    assert rounds(256, 257) == [256, 257]
    assert rounds(512) == [512]
    assert rounds(600, 100) == [512, 188]


def test_a_request_of_fewer_than_16_queries_is_never_expanded():
    problem = make_problem(16, 512, 128, 64, 128, "bfloat16")
    assert [expands(problem, count, count) for count in (15, 16)] == [False, True]


def test_the_work_is_that_of_the_cheaper_way():
    """Two queries at the end of five latents see four and five of them."""
    problem = make_problem(2, 8, 4, 2, 4)
    weights = 8 * (4 + 4)
    elements = 5 * (8 + 2) + 2 * weights + 2 * 2 * (4 + 2 + 4)
    absorbed = 2 * weights + (4 + 5) * (8 + 2 + 8)
    assert problem.work([(2, 5)]) == Work(4 * elements, 2 * 2 * absorbed)


def test_the_layout_is_one_latent_a_token_and_says_its_bytes():
    plan = select_mixer(make_problem(*SHAPE, "bfloat16"))
    assert [tensor.shape for tensor in plan.layout.tensors] == [(16, 64)]
    assert plan.layout.block_bytes == 16 * 64 * 2
    assert [tuple(cache.shape) for cache in plan.layout.allocate(5)] == [(5, 16, 64)]


def test_a_host_that_offers_only_another_layout_is_told_what_is_needed():
    with pytest.raises(UnsupportedMixerError, match="needs the cache layout latent of 16 tokens.*offers nhd of 8"):
        select_mixer(make_problem(*SHAPE), offered=[CacheLayout("nhd", 8, ())])


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(UnsupportedMixerError, match="'cuda' is not one of .*native, torch, reference"):
        select_mixer(make_problem(*SHAPE), only_backend="cuda")


def test_weights_of_another_shape_are_refused():
    plan = select_mixer(make_problem(*SHAPE))
    with pytest.raises(ValueError, match=r"kv_b is \[3, 48\] torch.float32, but the problem calls for \[264, 48\]"):
        plan.prepare({"kv_b": torch.zeros(3, 48)})


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"num_heads": 0}, "num_heads is 0; it must be at least 1"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim is 7; pairs are rotated: it must be even"),
        ({"dtype": "float64"}, "dtype is 'float64'; give one of"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(overrides, words):
    sizes = {"num_heads": 4, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
    others = {"scale": 1.0, "dtype": "float32", "cache": CacheFormat("float32"), "block_size": 4}
    with pytest.raises(ValueError, match=words):
        MlaProblem(**(sizes | others | overrides))
