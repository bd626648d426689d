"""Attention of queries of any length, over rows and over pages, emulated."""

from __future__ import annotations

import importlib
from itertools import pairwise
from types import ModuleType

import pytest
import torch

from paged_sequences import PagedSequences, plain_attention
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16
CLOSE = {"rtol": 1e-2, "atol": 1e-2}


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def rows(total: int, heads: int, dim: int) -> torch.Tensor:
    return torch.randn(total, heads, dim).to(BF16)


def varlen(**changes) -> dict:
    given = {
        "q": rows(9, 6, 24),
        "k": rows(13, 2, 24),
        "v": rows(13, 2, 16),
        "cu_seqlens_q": int32([0, 5, 6, 9]),
        "cu_seqlens_k": int32([0, 5, 10, 13]),
        "max_seqlen_q": 5,
        "max_seqlen_k": 5,
    }
    return given | {name: change(given[name]) if callable(change) else change for name, change in changes.items()}


@pytest.mark.parametrize("window", [0, 2])
def test_sequences_attend_causally_to_their_own_keys(aiter: ModuleType, window: int):
    given = varlen(q=rows(10, 6, 24))
    out = torch.full((10, 6, 16), 7.0, dtype=BF16)
    sides = (window - 1, 0) if window else (-1, -1)
    result, sums = aiter.flash_attn_varlen_func(**given, causal=True, window_size=sides, out=out, return_lse=True)
    assert result is out
    for (a, b), (c, d) in zip(pairwise([0, 5, 6, 9]), pairwise([0, 5, 10, 13]), strict=True):
        expected = plain_attention(given["q"][a:b], given["k"][c:d], given["v"][c:d], window=window)
        torch.testing.assert_close(out[a:b], expected.to(BF16), **CLOSE)
    assert (out[9] == 7).all()
    assert sums.shape == (6, 10)
    torch.testing.assert_close(
        sums[:, 0], (given["q"][0].float() * given["k"][0].float().repeat_interleave(3, 0)).sum(-1) * 24**-0.5
    )


def test_a_row_that_sees_nothing_is_zero(aiter: ModuleType):
    given = varlen(cu_seqlens_k=int32([0, 2, 10, 13]), max_seqlen_k=8)
    out = aiter.flash_attn_varlen_func(**given, causal=True)
    assert (out[:3] == 0).all()
    assert (out[3:5] != 0).all()


def test_sequences_of_few_queries_are_left_out(aiter: ModuleType):
    out = torch.full((9, 6, 16), 7.0, dtype=BF16)
    aiter.flash_attn_varlen_func(**varlen(), causal=True, min_seqlen_q=1, out=out)
    assert (out[5] == 7).all()
    assert (out[[0, 4, 6, 8]] != 7).all()


def test_git_has_sinks_in_float32(git_aiter: ModuleType):
    given, sinks = varlen(), torch.randn(6)
    out = git_aiter.flash_attn_varlen_func(**given, causal=True, sink_ptr=sinks)
    expected = plain_attention(given["q"][:5], given["k"][:5], given["v"][:5], sinks=sinks)
    torch.testing.assert_close(out[:5], expected.to(BF16), **CLOSE)
    for wrong, words in ((sinks.to(BF16), "sink_ptr is torch.bfloat16"), (sinks[:2], "sink_ptr has shape")):
        with pytest.raises(SilentlyWrong, match=words):
            git_aiter.flash_attn_varlen_func(**given, causal=True, sink_ptr=wrong)


def test_alibi_counts_from_the_last_key(aiter: ModuleType):
    given, slopes = varlen(), torch.rand(6)
    out = aiter.flash_attn_varlen_func(**given, alibi_slopes=slopes)
    q, k, v = given["q"][8].float(), *(given[name][10:13].float().repeat_interleave(3, 1) for name in "kv")
    logits = torch.einsum("hd,khd->hk", q, k) * 24**-0.5 - slopes[:, None] * (2 - torch.arange(3))
    torch.testing.assert_close(out[8], torch.einsum("hk,khd->hd", logits.softmax(-1), v).to(BF16), **CLOSE)


def test_results_lie_apart_from_queries(aiter: ModuleType):
    given = varlen(v=rows(13, 2, 24))
    with pytest.raises(SilentlyWrong, match="share memory"):
        aiter.flash_attn_varlen_func(**given, out=given["q"])


def test_keys_may_lie_in_pages_of_128(aiter: ModuleType):
    paged = PagedSequences.of([130, 9], 128, 2, 24)
    q = rows(5, 6, 24)
    arguments = (q, paged.keys, paged.values, int32([0, 3, 5]), int32([0, 130, 139]), 3, 130)
    out = aiter.flash_attn_varlen_func(*arguments, causal=True, block_table=paged.table)
    torch.testing.assert_close(out, paged.attention(q, [0, 3, 5]), **CLOSE)
    small = PagedSequences.of([130, 9], 16, 2, 24)
    for keys, values, table, words in (
        (small.keys, small.values, small.table, "divisible by 128"),
        (paged.keys, paged.values, paged.table.long(), "block_table must have dtype"),
        (paged.keys, paged.values, paged.table.T.contiguous().T, "contiguous last dimension"),
        (paged.keys[0], paged.values[0], paged.table, "pages, page_size"),
        (paged.keys, paged.values[:2], paged.table, "v has another shape"),
    ):
        with pytest.raises(Refused, match=words):
            aiter.flash_attn_varlen_func(q, keys, values, *arguments[3:], causal=True, block_table=table)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"q": torch.Tensor.float}, Refused, "not supported"),
        ({"k": torch.Tensor.half}, Refused, "same dtype"),
        ({"cu_seqlens_q": torch.Tensor.long}, Refused, "cu_seqlens_q must have dtype int32"),
        ({"cu_seqlens_k": int32([0, 13])}, Refused, "another batch size"),
        ({"q": rows(9, 5, 24)}, Refused, "must divide"),
        ({"cu_seqlens_q": lambda starts: starts.repeat_interleave(2)[::2]}, Refused, "must be contiguous"),
        ({"k": lambda k: k[None]}, Refused, "total_k, heads"),
        ({"v": lambda v: v[:9]}, Refused, "v has another shape"),
        ({"out": torch.empty(9, 6, 24, dtype=BF16)}, Refused, "out has shape"),
        ({"out": torch.empty(9, 6, 32, dtype=BF16)[..., ::2]}, Refused, "contiguous last dimension"),
        ({"dropout_p": 0.1}, NotImplementedError, "dropout"),
        ({"alibi_slopes": torch.ones(6, dtype=BF16)}, SilentlyWrong, "alibi_slopes is torch.bfloat16"),
        ({"q": rows(9, 6, 264), "k": rows(13, 2, 264)}, Refused, "at most 256"),
        ({"out": torch.empty(9, 6, 16)}, Refused, "same dtype"),
        ({"max_seqlen_q": 4}, SilentlyWrong, "max_seqlen_q is 4"),
        ({"max_seqlen_k": 4}, SilentlyWrong, "max_seqlen_k is 4"),
        ({"cu_seqlens_q": int32([0, 5, 6, 10])}, SilentlyWrong, "ends at 10"),
        ({"cu_seqlens_k": int32([0, 5, 3, 13])}, SilentlyWrong, "falls"),
    ],
)
def test_attention_of_rows_refuses_and_finds(aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        aiter.flash_attn_varlen_func(**varlen(**changes))


def pages_of(paged: PagedSequences) -> dict:
    """The page list of each sequence, and how full its last page is."""
    page_size = paged.keys.shape[1]
    counts = [-(-length // page_size) for length in paged.lengths.tolist()]
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    ids = torch.cat([paged.table[row, :count] for row, count in enumerate(counts)])
    lasts = int32(
        [length - (count - 1) * page_size for length, count in zip(paged.lengths.tolist(), counts, strict=True)]
    )
    return {"kv_indptr": int32(starts), "kv_page_indices": ids, "kv_last_page_lens": lasts}


@pytest.mark.parametrize("layout", ["rows", "shuffled"])
def test_git_prefills_over_pages_of_two_layouts(git_aiter: ModuleType, layout: str):
    paged, q = PagedSequences.of([33, 9], 16, 2, 32), rows(7, 6, 32)
    caches = (paged.keys, paged.values) if layout == "rows" else (paged.x_packed(), paged.shuffled())
    lists, sinks = pages_of(paged), torch.randn(6)
    common = {"max_seqlen_q": 4, "max_seqlen_k": 33, "causal": True, "sink_ptr": sinks}
    out = git_aiter.mha_batch_prefill_func(q, *caches, int32([0, 4, 7]), **lists, **common)
    torch.testing.assert_close(out, paged.attention(q, [0, 4, 7], sinks=sinks), **CLOSE)
    lists["kv_last_page_lens"] = None
    by_table = {"block_table": paged.table, "seqlen_k": paged.lengths}
    again = git_aiter.mha_batch_prefill_func(q, *caches, int32([0, 4, 7]), **lists, **common, **by_table)
    assert torch.equal(again, out)


def test_both_prefill_over_single_tokens(aiter: ModuleType):
    paged, q = PagedSequences.of([33, 9], 1, 2, 32), rows(7, 6, 32)
    lists = pages_of(paged)
    lists.pop("kv_last_page_lens")
    caches = (paged.keys[:, 0], paged.values[:, 0])
    out = aiter.mha_batch_prefill_func(
        q, *caches, int32([0, 4, 7]), **lists, max_seqlen_q=4, max_seqlen_k=33, causal=True
    )
    torch.testing.assert_close(out, paged.attention(q, [0, 4, 7]), **CLOSE)


def batch(**changes) -> dict:
    paged = PagedSequences.of([33, 9], 16, 2, 32)
    given = {"q": rows(7, 6, 32), "k": paged.keys, "v": paged.values, "cu_seqlens_q": int32([0, 4, 7])}
    given |= {**pages_of(paged), "max_seqlen_q": 4, "max_seqlen_k": 33}
    return given | {name: change(given[name]) if callable(change) else change for name, change in changes.items()}


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"kv_last_page_lens": None}, Refused, "must pass kv_last_page_lens"),
        ({"kv_page_indices": torch.Tensor.long}, Refused, "kv_page_indices must have dtype torch.int32"),
        ({"k": lambda k: k.float()}, Refused, "same dtype"),
        ({"v": lambda v: v[..., :24].contiguous().transpose(1, 2)}, Refused, "page stride"),
        ({"q": rows(7, 6, 36), "k": lambda k: k.new_empty(*k.shape[:-1], 36)}, Refused, "multiples of 8"),
        ({"block_table": torch.zeros(2, 3, dtype=torch.int32)}, Refused, "requires seqlen_k"),
        ({"cu_seqlens_q": torch.Tensor.long}, Refused, "cu_seqlens_q must have dtype int32"),
        ({"kv_indptr": int32([0, 4])}, Refused, "kv_indptr must have shape"),
        ({"k": lambda k: k.flatten(0, 1)}, Refused, "5D"),
        ({"k": lambda k: k[..., ::2], "v": lambda v: v[..., ::2]}, Refused, "last dim must be contiguous"),
        ({"k": lambda k: k[..., :24]}, Refused, "k must have shape"),
        ({"v": lambda v: v[:, :8]}, Refused, "v must have shape"),
        ({"block_table": torch.zeros(2, 3), "seqlen_k": int32([33, 9])}, Refused, "block_table must be int32"),
        ({"block_table": torch.zeros(1, 3, dtype=torch.int32), "seqlen_k": int32([33, 9])}, Refused, "batch size"),
        ({"q_descale": torch.ones(1)}, NotImplementedError, "16 bits"),
        ({"kv_last_page_lens": torch.Tensor.long}, SilentlyWrong, "kv_last_page_lens is torch.int64"),
        ({"max_seqlen_q": 3}, SilentlyWrong, "max_seqlen_q is 3"),
        ({"sink_ptr": torch.ones(2)}, SilentlyWrong, "sink_ptr has shape"),
        ({"kv_page_indices": lambda ids: ids + 50}, SilentlyWrong, "do not exist"),
        ({"kv_indptr": int32([0, 3, 5])}, SilentlyWrong, "ends at 5"),
        ({"kv_last_page_lens": int32([17, 9])}, SilentlyWrong, "for pages of 16"),
        ({"max_seqlen_k": 32}, SilentlyWrong, "max_seqlen_k is 32"),
    ],
)
def test_prefill_over_pages_refuses_and_finds(git_aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        git_aiter.mha_batch_prefill_func(**batch(**changes))


def test_the_shuffled_layout_has_no_holes_and_pages_of_whole_vectors(git_aiter: ModuleType):
    paged = PagedSequences.of([33, 9], 16, 2, 32)
    for keys, values, words in (
        (paged.x_packed().transpose(2, 3).contiguous().transpose(2, 3), paged.shuffled(), "no holes"),
        (paged.x_packed()[:, :, :, :12], paged.shuffled(), "page size divisible by 8"),
    ):
        with pytest.raises(Refused, match=words):
            git_aiter.mha_batch_prefill_func(**batch(k=keys, v=values))


def test_the_release_on_pypi_has_no_pages(pypi_aiter: ModuleType):
    given = batch()
    given.pop("kv_last_page_lens")
    with pytest.raises(Refused, match="tokens, heads, head_dim"):
        pypi_aiter.mha_batch_prefill_func(**given)
    for name in "kv":
        given[name] = given[name].flatten(0, 1)
    narrow = {name: given[name][..., :28] for name in "qkv"}
    with pytest.raises(Refused, match="head sizes must be multiples of 8"):
        pypi_aiter.mha_batch_prefill_func(**given | narrow)


def unified(**changes) -> dict:
    paged = PagedSequences.of([33, 9, 70], 16, 2, 24)
    given = {
        "q": rows(8, 6, 24),
        "k": paged.keys,
        "v": paged.values,
        "out": torch.empty(8, 6, 24, dtype=BF16),
        "cu_seqlens_q": int32([0, 4, 5, 8]),
        "max_seqlen_q": 4,
        "seqused_k": paged.lengths,
        "max_seqlen_k": 70,
        "softmax_scale": 0.2,
        "causal": True,
        "window_size": (-1, -1),
        "block_table": paged.table,
        "softcap": 0.0,
        "q_descale": None,
        "k_descale": None,
        "v_descale": None,
    }
    made = {name: change(given[name]) if callable(change) else change for name, change in changes.items()}
    return {"paged": paged} | given | made


def unified_attention(**given) -> torch.Tensor:
    given.pop("paged")
    importlib.import_module("aiter.ops.triton.unified_attention").unified_attention(**given)
    return given["out"]


@pytest.mark.parametrize("heads_first", [False, True])
@pytest.mark.parametrize(("window", "sinks"), [(0, None), (5, torch.linspace(-1, 2, 6))])
def test_unified_attention_reads_pages_of_any_strides(
    aiter: ModuleType, heads_first: bool, window: int, sinks: torch.Tensor | None
):
    given = unified(window_size=(window - 1, 0), sinks=sinks)
    if heads_first:
        both = torch.cat([given["k"], given["v"]], -1).transpose(1, 2).contiguous().transpose(1, 2)
        given["k"], given["v"] = both.split(24, dim=-1)
    expected = given["paged"].attention(given["q"], [0, 4, 5, 8], scale=0.2, window=window, sinks=sinks)
    torch.testing.assert_close(unified_attention(**given), expected, **CLOSE)


def test_unified_attention_reads_an_fp8_cache_with_its_scales(aiter: ModuleType):
    given = unified(k_descale=torch.tensor([0.5]), v_descale=torch.tensor([0.25]))
    stored = given["paged"].stored_as(aiter.dtypes.fp8, 0.5, 0.25)
    given["k"], given["v"] = stored.keys, stored.values
    rounded = PagedSequences(stored.keys.float() * 0.5, stored.values.float() * 0.25, stored.table, stored.lengths)
    torch.testing.assert_close(
        unified_attention(**given), rounded.attention(given["q"], [0, 4, 5, 8], scale=0.2), **CLOSE
    )
    with pytest.raises(Refused, match="k_ and v_descale"):
        unified_attention(**given | {"v_descale": None})


def test_unified_attention_of_git_reads_the_shuffled_layout(git_aiter: ModuleType):
    paged = PagedSequences.of([33, 9, 70], 16, 2, 24)
    caches = {"k": paged.x_packed(), "v": paged.shuffled(), "block_table": paged.table, "seqused_k": paged.lengths}
    given = unified(**caches, shuffled_kv_cache=True)
    torch.testing.assert_close(
        unified_attention(**given), paged.attention(given["q"], [0, 4, 5, 8], scale=0.2), **CLOSE
    )


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"causal": False}, AssertionError, "Only causal"),
        ({"sinks": torch.ones(2)}, AssertionError, "num_query_heads"),
        ({"q": torch.Tensor.half}, Refused, "the cache"),
        ({"k": lambda k: k.permute(0, 2, 3, 1)}, SilentlyWrong, "k has shape"),
        ({"v": lambda v: v.transpose(1, 2)}, SilentlyWrong, "v has shape"),
        ({"k": lambda k: k[0]}, Refused, "k and v must be"),
        ({"q": lambda q: q[:, :5], "out": lambda out: out[:, :5]}, SilentlyWrong, "5 heads over 2"),
        ({"q": lambda q: q.transpose(1, 2).contiguous().transpose(1, 2)}, SilentlyWrong, "q has strides"),
        ({"out": torch.empty(8, 24, 6, dtype=BF16).transpose(1, 2)}, SilentlyWrong, "out has strides"),
        ({"out": torch.empty(9, 6, 24, dtype=BF16)}, SilentlyWrong, "out has shape"),
        ({"v": torch.Tensor.half}, SilentlyWrong, "v is torch.float16"),
        ({"block_table": lambda table: table[:2]}, SilentlyWrong, "2 rows for 3"),
        ({"qq_bias": torch.ones(8, 8)}, NotImplementedError, "16-bit"),
        ({"max_seqlen_q": 3}, SilentlyWrong, "max_seqlen_q is 3"),
        ({"max_seqlen_k": 69}, SilentlyWrong, "max_seqlen_k is 69"),
        ({"seqused_k": int32([3, 9, 70])}, SilentlyWrong, "4 queries at 3 tokens"),
        ({"seqused_k": int32([33, 9])}, SilentlyWrong, "2 lengths for 3"),
        ({"block_table": lambda table: table[:, :3]}, SilentlyWrong, "need 5 pages"),
        ({"block_table": lambda table: table - 4}, SilentlyWrong, "do not exist"),
        ({"cu_seqlens_q": int32([0, 4, 5, 9])}, SilentlyWrong, "cu_seqlens_q is"),
        ({"cu_seqlens_q": lambda starts: starts.repeat_interleave(2)[::2]}, SilentlyWrong, "cu_seqlens_q has strides"),
        ({"seqused_k": lambda lengths: lengths.repeat_interleave(2)[::2]}, SilentlyWrong, "seqused_k has strides"),
    ],
)
def test_unified_attention_refuses_and_finds(aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        unified_attention(**unified(**changes))


def test_unified_attention_writes_apart_from_its_queries(aiter: ModuleType):
    given = unified()
    with pytest.raises(SilentlyWrong, match="share memory"):
        unified_attention(**given | {"out": given["q"]})


def test_the_shuffled_layout_of_git_is_looked_at(git_aiter: ModuleType):
    paged = PagedSequences.of([33, 9, 70], 24, 2, 24)
    given = unified(k=paged.x_packed(), v=paged.shuffled(), shuffled_kv_cache=True)
    with pytest.raises(AssertionError, match="power-of-2 page"):
        unified_attention(**given)
    with pytest.raises(SilentlyWrong, match="v has shape"):
        unified_attention(**given | {"v": paged.transposed()})
    with pytest.raises(SilentlyWrong, match="k has shape"):
        unified_attention(**given | {"k": paged.keys})


def test_decode_of_the_release_on_pypi_wants_pages_of_a_power_of_two(pypi_aiter: ModuleType):
    paged = PagedSequences.of([33, 9, 70], 24, 2, 24)
    caches = {"k": paged.keys, "v": paged.values, "block_table": paged.table}
    given = unified(**caches, q=rows(3, 6, 24), out=rows(3, 6, 24), cu_seqlens_q=int32([0, 1, 2, 3]), max_seqlen_q=1)
    with pytest.raises(Refused, match="power of 2"):
        unified_attention(**given)


def test_decode_of_the_release_on_pypi_reads_pages_to_their_ends(pypi_aiter: ModuleType):
    given = unified(q=rows(3, 6, 24), out=rows(3, 6, 24), cu_seqlens_q=int32([0, 1, 2, 3]), max_seqlen_q=1)
    with pytest.raises(SilentlyWrong, match="make its result NaN"):
        unified_attention(**given)
    given |= {"v": given["v"].nan_to_num()}
    assert unified_attention(**given).isfinite().all()
