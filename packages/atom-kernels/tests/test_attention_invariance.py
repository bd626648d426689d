"""A request's attention depends on that request alone: not on its batch, its chunks, or where its blocks lie."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.attention.ops import make_problem
from atom_kernels.mixers import select_mixer
from atom_kernels.mixers.cases import make_geometry
from atom_kernels.native import native_unavailable
from atom_kernels.protocols import BatchGeometry
from attention_in_chunks import attend_in_chunks

BACKENDS = [name for name in ("native", "torch") if name != "native" or native_unavailable() is None]
NUM_TOKENS = 700
SHAPES = {
    "gqa": {},
    "window": {"sliding_window": 100, "has_sinks": True},
    "soft cap": {"soft_cap": 10.0},
}


def make_tokens(problem, num_tokens=NUM_TOKENS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    heads = (problem.num_heads, problem.num_kv_heads, problem.num_kv_heads)
    dtype = getattr(torch, problem.dtype)
    return [torch.randn(num_tokens, count, problem.head_dim, generator=generator).to(dtype) for count in heads]


def make_weights(problem):
    return (
        {"sinks": torch.linspace(-1, 1, problem.num_heads).to(getattr(torch, problem.dtype))}
        if problem.has_sinks
        else {}
    )


def attend(plan, tokens, ends, *, scattered=True):
    def inputs_of(chunk):
        return tuple(x[chunk] for x in tokens), None

    return attend_in_chunks(plan, make_weights(plan.problem), inputs_of, ends=ends, scattered=scattered)


@pytest.mark.parametrize("rules", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim", [64, 96, 40])
@pytest.mark.skipif("native" not in BACKENDS, reason=f"native kernels: {native_unavailable()}")
def test_chunks_and_single_tokens_give_the_same_bits_as_the_whole_prompt(dtype, rules, head_dim):
    plan = select_mixer(make_problem(6, 2, head_dim, dtype, **rules), only_backend="native")
    tokens = make_tokens(plan.problem)
    whole = attend(plan, tokens, [NUM_TOKENS])
    assert not whole.isnan().any()
    for ends in ([1, 3, 258, NUM_TOKENS], [64, 513, NUM_TOKENS], list(range(600, NUM_TOKENS + 1))):
        assert torch.equal(attend(plan, tokens, ends), whole)


@pytest.mark.parametrize("rules", SHAPES.values(), ids=SHAPES)
def test_chunks_through_torch_agree_to_rounding(rules):
    plan = select_mixer(make_problem(6, 2, 64, **rules), only_backend="torch")
    tokens = make_tokens(plan.problem)
    whole = attend(plan, tokens, [NUM_TOKENS])
    assert not whole.isnan().any()
    torch.testing.assert_close(attend(plan, tokens, [1, 3, 258, NUM_TOKENS]), whole, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_does_not_matter_where_the_blocks_lie(backend, dtype):
    plan = select_mixer(make_problem(6, 2, 64, dtype), only_backend=backend)
    tokens = make_tokens(plan.problem)
    ends = [400, 401, NUM_TOKENS]
    together = attend(plan, tokens, ends, scattered=False)
    assert torch.equal(attend(plan, tokens, ends, scattered=True), together)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_request_gets_the_same_bits_alone_and_in_any_batch(backend, dtype, threads):
    problem = make_problem(6, 2, 64, dtype)
    plan = select_mixer(problem, only_backend=backend)
    requests = [(1, 5), (1, 600), (2, 300), (40, 310), (30, 30), (1, 256), (1, 257)]
    geometry, num_blocks = make_geometry(requests, problem.block_size, scattered=True)
    tokens = make_tokens(problem, geometry.num_tokens)
    kv_cache = tuple(
        torch.randn(cache.shape, generator=torch.Generator().manual_seed(1)).to(cache.dtype)
        for cache in plan.layout.allocate(num_blocks)
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        q, k, v = tokens
        together = plan.forward((q, k, v), kv_cache, plan.build_metadata(geometry))
        # Our own kernels give the same bits with any number of threads, torch's only with the same number.
        torch.set_num_threads(1 if backend == "native" else threads)
        for index in range(len(requests)):
            first, last = geometry.query_start_loc[index : index + 2].tolist()
            alone = BatchGeometry(
                query_start_loc=torch.tensor([0, last - first], dtype=torch.int32),
                seq_lens=geometry.seq_lens[index : index + 1],
                block_table=geometry.block_table[index : index + 1],
                slot_mapping=geometry.slot_mapping[first:last],
                num_reqs=1,
                num_tokens=last - first,
                num_decodes=int(last - first == 1),
                max_query_len=last - first,
                max_seq_len=requests[index][1],
            )
            rows = slice(first, last)
            out = plan.forward((q[rows], k[rows], v[rows]), kv_cache, plan.build_metadata(alone))
            assert torch.equal(out, together[first:last])
    finally:
        torch.set_num_threads(before)
