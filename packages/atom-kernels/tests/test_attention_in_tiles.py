"""Attention in AMX tiles, on any CPU: without AMX, tiles are imitated in C."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.attention import native_functions
from atom_kernels.attention.cases import make_step
from atom_kernels.attention.ops import make_problem
from atom_kernels.mixers import select_mixer
from atom_kernels.native import native_unavailable
from attention_in_chunks import attend_in_chunks

_NUM_TOKENS = 560
_RULES = {"plain": {}, "window": {"sliding_window": 100, "has_sinks": True}, "soft cap": {"soft_cap": 10.0}}
_CACHES = {"bfloat16": {}, "e4m3": {"kv_cache_dtype": "float8_e4m3fn"}}
pytestmark = pytest.mark.skipif(native_unavailable() is not None, reason=f"native kernels: {native_unavailable()}")


@pytest.fixture(autouse=True)
def _tiles(monkeypatch):
    if not native_functions.runs_in_tiles("bfloat16", (64,)):
        monkeypatch.setattr(native_functions, "runs_in_tiles", lambda dtype, channels: dtype == "bfloat16")


def _problem(num_heads=6, num_kv_heads=2, head_dim=64, **rules):
    return make_problem(num_heads, num_kv_heads, head_dim, "bfloat16", **rules)


def _attend(problem, ends):
    generator = torch.Generator().manual_seed(0)
    counts = (problem.num_heads, problem.num_kv_heads, problem.num_kv_heads)
    tokens = [torch.randn(_NUM_TOKENS, n, problem.head_dim, generator=generator).bfloat16() for n in counts]
    sinks = torch.linspace(-1, 1, problem.num_heads).bfloat16()
    weights = {"sinks": sinks} if problem.has_sinks else {}
    plan = select_mixer(problem, only_backend="native")
    return attend_in_chunks(
        plan, weights, lambda chunk: (tuple(x[chunk] for x in tokens), None), ends=ends, scattered=True
    )


@pytest.mark.parametrize("cache", _CACHES.values(), ids=_CACHES)
@pytest.mark.parametrize("rules", _RULES.values(), ids=_RULES)
@pytest.mark.parametrize("heads", [(6, 2), (20, 1)], ids=["few rows", "many rows"])
def test_it_agrees_with_the_reference(heads, rules, cache):
    problem = _problem(*heads, **rules, **cache)
    step = make_step(problem, [(1, 1), (1, 300), (1, 513), (3, 40), (70, 330)])
    found = step.run(select_mixer(problem, only_backend="native"))[0].float()
    exact = step.run(select_mixer(problem, only_backend="reference"))[0].float()
    torch.testing.assert_close(found, exact, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("cache", _CACHES.values(), ids=_CACHES)
@pytest.mark.parametrize("rules", _RULES.values(), ids=_RULES)
def test_chunks_and_single_tokens_give_the_same_bits_as_the_whole_prompt(rules, cache):
    problem = _problem(**rules, **cache)
    whole = _attend(problem, [_NUM_TOKENS])
    assert not whole.isnan().any()
    for ends in ([1, 3, 258, _NUM_TOKENS], [64, 513, _NUM_TOKENS], list(range(540, _NUM_TOKENS + 1))):
        assert torch.equal(_attend(problem, ends), whole)


@pytest.mark.parametrize(
    "heads", [(2, 2), (14, 2), (24, 2), (40, 2)], ids=lambda heads: f"groups of {heads[0] // heads[1]}"
)
@pytest.mark.parametrize("block_size", [1, 16, 24])
def test_groups_of_any_size_over_blocks_of_any_size_give_the_same_bits_in_chunks(heads, block_size):
    problem = _problem(*heads, 96, block_size=block_size)
    whole = _attend(problem, [_NUM_TOKENS])
    assert not whole.isnan().any()
    assert torch.equal(_attend(problem, [250, 257, 258, _NUM_TOKENS - 2, _NUM_TOKENS]), whole)


def test_heads_that_do_not_fill_tiles_are_left_to_vectors(monkeypatch):
    monkeypatch.undo()
    assert not native_functions.runs_in_tiles("bfloat16", (40,))
    assert not native_functions.runs_in_tiles("bfloat16", (64, 40))
    assert not native_functions.runs_in_tiles("float32", (64,))
