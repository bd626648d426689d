"""Decode over paged caches: in assembly, compiled by HIP, and in Gluon, emulated."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch

from emulated_aiter import emulated_aiter
from paged_sequences import PagedSequences
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16, FP16 = torch.bfloat16, torch.float16
LENGTHS = [33, 1, 16, 50]
CLOSE = {"rtol": 1e-2, "atol": 1e-2}


def asm_arguments(heads: int = 6, lengths: list[int] = LENGTHS, dtype: torch.dtype = BF16, **changes) -> dict:
    paged = PagedSequences.of(lengths, 16, 2, 128, dtype)
    given = {
        "Q": torch.randn(len(lengths), heads, 128).to(dtype),
        "K": paged.x_packed(),
        "V": paged.shuffled(),
        "block_tables": paged.table,
        "context_lens": paged.lengths,
        "block_tables_stride0": paged.table.stride(0),
    }
    return given | {name: change(given[name]) if callable(change) else change for name, change in changes.items()}


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("heads", [2, 16, 32])
def test_assembly_attends_by_pages(aiter: ModuleType, heads: int, dtype: torch.dtype):
    paged = PagedSequences.of(LENGTHS, 16, 2, 128, dtype)
    q = torch.randn(4, 2 * heads, 128).to(dtype)[:, heads:]
    caches = {"K": paged.x_packed(), "V": paged.shuffled(), "block_tables": paged.table, "context_lens": paged.lengths}
    out = torch.empty(q.shape, dtype=dtype)
    result = aiter.pa_fwd_asm(q, **caches, block_tables_stride0=paged.table.stride(0), out_=out)
    assert result is out
    torch.testing.assert_close(out, paged.attention(q, [0, 1, 2, 3, 4]), **CLOSE)


def test_assembly_attends_with_several_queries_in_a_row(aiter: ModuleType):
    paged = PagedSequences.of([33, 7], 16, 2, 128)
    q, starts = torch.randn(5, 16, 128).to(BF16), torch.tensor([0, 3, 5], dtype=torch.int32)
    caches = {"K": paged.x_packed(), "V": paged.shuffled(), "block_tables": paged.table, "context_lens": paged.lengths}
    out = aiter.pa_fwd_asm(q, **caches, block_tables_stride0=paged.table.stride(0), max_qlen=3, qo_indptr=starts)
    torch.testing.assert_close(out, paged.attention(q, [0, 3, 5]), **CLOSE)


@pytest.mark.parametrize("precision", [0, 1, 2])
def test_assembly_reads_fp8_with_a_scale_for_each_token(aiter: ModuleType, precision: int):
    exact = PagedSequences.of(LENGTHS, 16, 2, 128, torch.float32)
    scales = torch.rand(2, *exact.keys.shape[:3], 1) + 0.5
    stored = exact.stored_as(aiter.dtypes.fp8, *scales)
    exact.keys, exact.values = stored.keys.float() * scales[0], stored.values.float() * scales[1]
    q = torch.randn(4, 8, 128).to(BF16)
    by_page = scales[..., 0].transpose(2, 3).contiguous()
    out = aiter.pa_fwd_asm(
        q,
        stored.x_packed(),
        stored.shuffled(),
        exact.table,
        exact.lengths,
        exact.table.stride(0),
        K_QScale=by_page[0],
        V_QScale=by_page[1],
        high_precision=precision,
    )
    torch.testing.assert_close(out, exact.attention(q, [0, 1, 2, 3, 4]), **CLOSE)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"heads": 34}, Refused, "gqa:17"),
        ({"dtype": torch.float32}, Refused, "unsupport Q dtype"),
        ({"max_qlen": 3, "heads": 32, "qo_indptr": torch.arange(5, dtype=torch.int32)}, Refused, "gqa:16"),
        ({"high_precision": 2}, Refused, "hp:2"),
        ({"V": lambda v: v.flatten(2).view(*v.shape[:2], 128, 16)}, SilentlyWrong, "shuffled layout"),
        ({"V": lambda v: v[:, :, :, :64]}, SilentlyWrong, "V has shape"),
        ({"K": lambda k: k.transpose(2, 3)}, SilentlyWrong, "no holes"),
        ({"K": lambda k: k.flatten(2, 3)}, SilentlyWrong, "K has shape"),
        ({"K": lambda k: torch.cat([k, k], 1)[:, :2]}, SilentlyWrong, "other strides between pages"),
        ({"block_tables": lambda t: t.long()}, SilentlyWrong, "block_tables is torch.int64"),
        ({"block_tables": lambda t: t + 9}, SilentlyWrong, "do not exist"),
        ({"context_lens": lambda t: t.long()}, SilentlyWrong, "context_lens is torch.int64"),
        ({"context_lens": lambda t: t + 64}, SilentlyWrong, "tokens need"),
        ({"context_lens": lambda t: t[:3]}, SilentlyWrong, "the kernel computes 3"),
        ({"heads": 5}, SilentlyWrong, "5 heads over 2"),
        ({"K": lambda k: k.float(), "V": lambda v: v.float()}, SilentlyWrong, "K has shape"),
        ({"K": lambda k: k.view(torch.int16), "V": lambda v: v.view(torch.int16)}, Refused, "unsupport K dtype"),
        ({"V": torch.Tensor.half}, SilentlyWrong, "V is torch.float16"),
        ({"V": lambda v: v.transpose(2, 4).contiguous().transpose(2, 4)}, SilentlyWrong, "no holes"),
        ({"block_tables": lambda t: t[:3]}, SilentlyWrong, "block_tables has 3 rows"),
        ({"block_tables": lambda t: t.repeat_interleave(2, 1)[:, ::2]}, SilentlyWrong, "holes between its elements"),
        ({"max_qlen": 2, "qo_indptr": torch.tensor([0, 1, 3], dtype=torch.int32)}, SilentlyWrong, "3 entries for 4"),
        (
            {"max_qlen": 2, "qo_indptr": torch.tensor([0, 3, 3, 3, 4], dtype=torch.int32)},
            SilentlyWrong,
            "has 3 queries",
        ),
        ({"max_qlen": 2, "qo_indptr": torch.tensor([0, 0, 2, 3, 4], dtype=torch.int32)}, SilentlyWrong, "at 1 tokens"),
        ({"out_": torch.empty(3, 6, 128, dtype=BF16)}, SilentlyWrong, "out_ has shape"),
        ({"block_tables_stride0": 3}, SilentlyWrong, "rows are"),
        ({"out_": torch.empty(4, 6, 129, dtype=BF16)[..., :128]}, SilentlyWrong, "takes it as contiguous"),
        ({"out_": torch.empty(4, 6, 128)}, SilentlyWrong, "out_ is torch.float32"),
        ({"Q": torch.randn(4, 128, 6).to(BF16).transpose(1, 2)}, SilentlyWrong, "stride between rows"),
    ],
)
def test_assembly_refuses_and_finds(aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        aiter.pa_fwd_asm(**asm_arguments(**changes))


def test_the_result_of_assembly_must_not_lie_in_its_queries(aiter: ModuleType):
    given = asm_arguments()
    with pytest.raises(SilentlyWrong, match="share memory"):
        aiter.pa_fwd_asm(**given, out_=given["Q"])


def test_heads_of_another_size_are_refused_by_git_and_misread_by_the_other(
    git_aiter: ModuleType, pypi_aiter: ModuleType
):
    for package, error in ((git_aiter, Refused), (pypi_aiter, SilentlyWrong)):
        with pytest.raises(error, match="head_size=128"):
            package.pa_fwd_asm(**asm_arguments(Q=torch.randn(4, 6, 64).to(BF16)))


def test_an_fp8_cache_without_scales_is_found(aiter: ModuleType):
    paged = PagedSequences.of(LENGTHS, 16, 2, 128).stored_as(aiter.dtypes.fp8)
    given = asm_arguments(K=paged.x_packed(), V=paged.shuffled(), block_tables=paged.table)
    with pytest.raises(SilentlyWrong, match="without K_QScale"):
        aiter.pa_fwd_asm(**given)
    pages, heads, _, page_size, _ = given["K"].shape
    wide = torch.ones(pages, heads, 2 * page_size)
    for scale, words in (
        (torch.ones(1), "K_QScale has shape"),
        (wide[..., ::2], "takes it as contiguous"),
        (wide[..., :page_size].half(), "K_QScale is torch.float16"),
    ):
        with pytest.raises(SilentlyWrong, match=words):
            aiter.pa_fwd_asm(**given, K_QScale=scale, V_QScale=scale)


def rocm_arguments(page_size: int = 16, dim: int = 64, shuffled: bool = False, **changes) -> dict:
    paged = PagedSequences.of(LENGTHS, page_size, 2, dim)
    given = {
        "out": torch.empty(4, 6, dim, dtype=BF16),
        "exp_sums": torch.empty(4, 6, 1),
        "max_logits": torch.empty(4, 6, 1),
        "tmp_out": torch.empty(4, 6, 1, dim, dtype=BF16),
        "query": torch.randn(4, 6, dim).to(BF16),
        "key_cache": paged.x_packed(),
        "value_cache": paged.shuffled() if shuffled else paged.transposed(),
        "num_kv_heads": 2,
        "scale": 0.2,
        "block_tables": paged.table,
        "context_lens": paged.lengths,
        "block_size": page_size,
        "max_context_len": 50,
        "alibi_slopes": None,
        "kv_cache_dtype": "auto",
        "k_scale": None,
        "v_scale": None,
    }
    made = {name: change(given[name]) if callable(change) else change for name, change in changes.items()}
    return {"paged": paged} | given | made


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("page_size", "dim"), [(16, 64), (32, 128)])
def test_hip_attends_over_values_of_both_layouts(aiter: ModuleType, page_size: int, dim: int, shuffled: bool):
    given = rocm_arguments(page_size, dim, shuffled)
    paged = given.pop("paged")
    out = aiter.paged_attention_rocm(**given)
    assert out is given["out"]
    assert given["tmp_out"].isnan().all()
    torch.testing.assert_close(out, paged.attention(given["query"], [0, 1, 2, 3, 4], scale=0.2), **CLOSE)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"dim": 48}, Refused, "multiples of 64"),
        ({"kv_cache_dtype": "fp8"}, Refused, "kv_cache_dtype 'fp8'"),
        ({"num_kv_heads": 4}, Refused, "6 heads over 4"),
        ({"query": torch.Tensor.float}, Refused, "query: torch.float32"),
        ({"out": torch.Tensor.float}, Refused, "out: torch.float32"),
        ({"kv_cache_dtype": "int8"}, Refused, "kv_cache_dtype 'int8'"),
        ({"query": torch.Tensor.half}, Refused, "the cache torch.bfloat16"),
        ({"mtp": 2}, NotImplementedError, "one query"),
        ({"value_cache": torch.Tensor.half}, SilentlyWrong, "values are torch.float16"),
        ({"key_cache": lambda k: k.flatten(2, 3)}, SilentlyWrong, "key_cache has shape"),
        ({"value_cache": lambda v: v.transpose(2, 3)}, SilentlyWrong, "value_cache has shape"),
        ({"value_cache": lambda v: torch.cat([v, v], 1)[:, :2]}, SilentlyWrong, "other strides between pages"),
        ({"query": torch.randn(4, 64, 6).to(BF16).transpose(1, 2)}, SilentlyWrong, "stride between rows"),
        ({"out": lambda out: out[:3]}, SilentlyWrong, "out has shape"),
        ({"out": torch.empty(4, 6, 65, dtype=BF16)[..., :64]}, SilentlyWrong, "out has strides"),
        ({"context_lens": lambda lengths: lengths[:3]}, SilentlyWrong, "disagree"),
        ({"context_lens": lambda lengths: lengths.repeat_interleave(2)[::2]}, SilentlyWrong, "context_lens"),
        ({"block_tables": lambda table: table.repeat(1, 2)[:, :5]}, SilentlyWrong, "block_tables has strides"),
        ({"exp_sums": torch.Tensor.half}, SilentlyWrong, "exp_sums is torch.float16"),
        ({"max_logits": torch.empty(4, 6, 2)[..., :1]}, SilentlyWrong, "scratch has strides"),
        ({"tmp_out": lambda tmp: tmp[:2]}, SilentlyWrong, "tmp_out has"),
        ({"alibi_slopes": torch.ones(6, dtype=BF16)}, SilentlyWrong, "alibi_slopes is torch.bfloat16"),
        ({"num_kv_heads": 3}, SilentlyWrong, "the cache has 2"),
        ({"block_size": 32}, SilentlyWrong, "pages have 16"),
        ({"max_context_len": 49}, SilentlyWrong, "max_context_len 49 for 50"),
        ({"partition_size": 512}, SilentlyWrong, "256 compiled in"),
        ({"exp_sums": torch.empty(4, 5, 1)}, SilentlyWrong, "exp_sums has room for 20"),
        ({"tmp_out": torch.empty(4, 6, 1, 64)}, SilentlyWrong, "tmp_out is torch.float32"),
        ({"block_tables": torch.zeros(4, 4, dtype=torch.int64)}, SilentlyWrong, "block_tables is torch.int64"),
    ],
)
def test_hip_refuses_and_finds(aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    given = rocm_arguments(**changes)
    given.pop("paged")
    with pytest.raises(error, match=words):
        aiter.paged_attention_rocm(**given)


def test_hip_adds_alibi(aiter: ModuleType):
    given = rocm_arguments()
    paged, slopes = given.pop("paged"), torch.rand(6)
    out = aiter.paged_attention_rocm(**given | {"alibi_slopes": slopes})
    keys, values = (part.repeat_interleave(3, 1) for part in paged.tokens(0))
    logits = torch.einsum("hd,khd->hk", given["query"][0].float(), keys) * 0.2 + slopes[:, None] * (
        torch.arange(33) - 32
    )
    torch.testing.assert_close(out[0], torch.einsum("hk,khd->hd", logits.softmax(-1), values).to(BF16), **CLOSE)


@pytest.mark.parametrize("each", [False, True])
def test_hip_reads_an_fp8_cache_with_its_scales(aiter: ModuleType, each: bool):
    given = rocm_arguments(kv_cache_dtype="fp8")
    paged = given.pop("paged")
    scale = torch.rand(*paged.keys.shape[:3], 1) + 0.5 if each else torch.tensor([0.5])
    stored = paged.stored_as(aiter.dtypes.fp8, scale, scale)
    by_page = scale[..., 0].transpose(1, 2).contiguous() if each else scale
    given |= {
        "key_cache": stored.x_packed(),
        "value_cache": stored.transposed(),
        "k_scale": by_page,
        "v_scale": by_page,
    }
    exact = PagedSequences(stored.keys.float() * scale, stored.values.float() * scale, paged.table, paged.lengths)
    out = aiter.paged_attention_rocm(**given)
    torch.testing.assert_close(out, exact.attention(given["query"], [0, 1, 2, 3, 4], scale=0.2), **CLOSE)
    for wrong, words in ((None, "without k_scale"), (torch.ones(3), "has 3 numbers"), (scale.half(), "torch.float16")):
        with pytest.raises(SilentlyWrong, match=words):
            aiter.paged_attention_rocm(**given | {"k_scale": wrong})


def test_the_results_of_hip_lie_apart(aiter: ModuleType):
    given = rocm_arguments()
    given.pop("paged")
    for name, other in (("out", "query"), ("tmp_out", "out")):
        with pytest.raises(SilentlyWrong, match="share memory"):
            aiter.paged_attention_rocm(**given | {name: given[other].view(given[name].shape)})


def gluon_arguments(queries: int = 1, page_size: int = 16, shuffled: bool = False, **changes) -> dict:
    paged = PagedSequences.of([33, 4, 50], page_size, 2, 64)
    given = {
        "output": torch.empty(3 * queries, 6, 64, dtype=BF16),
        "query": torch.randn(3 * queries, 6, 64).to(BF16),
        "key_cache": paged.x_packed(),
        "value_cache": paged.shuffled() if shuffled else paged.transposed(),
        "context_lengths": paged.lengths,
        "block_tables": paged.table,
        "softmax_scale": 0.2,
        "query_length": queries,
        "max_context_partition_num": 1,
    }
    made = {name: change(given[name]) if callable(change) else change for name, change in changes.items()}
    return {"paged": paged} | given | made


def gluon(package: ModuleType) -> ModuleType:
    return importlib.import_module("aiter.ops.triton.gluon.pa_decode_gluon")


@pytest.mark.parametrize(("queries", "page_size", "shuffled"), [(1, 16, False), (4, 64, True), (2, 1024, False)])
@pytest.mark.parametrize(("window", "sinks"), [(0, False), (5, True)])
def test_gluon_attends_with_windows_and_sinks(
    git_aiter: ModuleType, queries: int, page_size: int, shuffled: bool, window: int, sinks: bool
):
    given = gluon_arguments(queries, page_size, shuffled, sinks=torch.randn(6).to(BF16) if sinks else None)
    paged = given.pop("paged")
    assert gluon(git_aiter).pa_decode_gluon(**given, sliding_window=window) is None
    starts = list(range(0, 3 * queries + 1, queries))
    expected = paged.attention(given["query"], starts, scale=0.2, window=window, sinks=given["sinks"])
    torch.testing.assert_close(given["output"], expected, **CLOSE)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"queries": 5}, AssertionError, "exceeds maximum of 4"),
        ({"page_size": 32}, AssertionError, "kv_block_size"),
        ({"context_partition_size": 512}, AssertionError, "context_partition_size"),
        ({"output": torch.empty(3, 6, 64)}, AssertionError, "output tensor"),
        ({"key_cache": torch.empty(3, 2, 64, 16, dtype=BF16)}, AssertionError, "Expected 5D"),
        ({"value_cache": torch.empty(7, 2, 16, 64, dtype=BF16)}, SilentlyWrong, "value_cache has shape"),
        ({"sinks": torch.ones(2)}, SilentlyWrong, "2 sinks for 6 heads"),
        ({"query": torch.Tensor.float}, AssertionError, "query tensor"),
        ({"alibi_slopes": torch.ones(6)}, NotImplementedError, "without ALiBi"),
        ({"query": lambda q: q[:, :5]}, SilentlyWrong, "5 heads over 2"),
        ({"query": lambda q: q[:, :, ::2]}, SilentlyWrong, "key_cache has shape"),
        ({"query": torch.randn(3, 64, 6).to(BF16).transpose(1, 2)}, SilentlyWrong, "query has strides"),
        ({"output": torch.empty(3, 64, 6, dtype=BF16).transpose(1, 2)}, SilentlyWrong, "output has strides"),
        ({"output": torch.empty(4, 6, 64, dtype=BF16)}, SilentlyWrong, "output has shape"),
        ({"value_cache": torch.Tensor.half}, SilentlyWrong, "values are torch.float16"),
        ({"context_lengths": torch.Tensor.long}, SilentlyWrong, "context_lengths is torch.int64"),
        ({"block_tables": torch.Tensor.long}, SilentlyWrong, "block_tables is torch.int64"),
        ({"context_lengths": lambda lengths: lengths[:2]}, SilentlyWrong, "2 lengths, 3 sequences"),
        ({"query_length": 2}, SilentlyWrong, "3 rows, 2 a sequence"),
        ({"block_tables": torch.full((3, 5), 99, dtype=torch.int32)}, SilentlyWrong, "do not exist"),
        ({"exp_sums": torch.empty(3, 2, 1, 2)}, SilentlyWrong, "exp_sums is too small"),
        ({"ps": False, "max_context_partition_num": 0}, SilentlyWrong, "0 partitions of 1"),
    ],
)
def test_gluon_refuses_and_finds(git_aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    given = gluon_arguments(**changes)
    given.pop("paged")
    with pytest.raises(error, match=words):
        gluon(git_aiter).pa_decode_gluon(**given)


@pytest.mark.parametrize("each", [False, True])
def test_gluon_reads_an_fp8_cache_with_its_scales(git_aiter: ModuleType, each: bool):
    given = gluon_arguments()
    paged = given.pop("paged")
    scale = torch.rand(*paged.keys.shape[:3], 1) + 0.5 if each else torch.tensor([0.5])
    stored = paged.stored_as(git_aiter.dtypes.fp8, scale, scale)
    by_page = scale.transpose(1, 2).contiguous() if each else scale
    scales = {"key_scale": by_page, "value_scale": by_page}
    given |= {"key_cache": stored.x_packed(), "value_cache": stored.transposed()} | scales
    exact = PagedSequences(stored.keys.float() * scale, stored.values.float() * scale, paged.table, paged.lengths)
    gluon(git_aiter).pa_decode_gluon(**given)
    torch.testing.assert_close(given["output"], exact.attention(given["query"], [0, 1, 2, 3], scale=0.2), **CLOSE)
    with pytest.raises(AssertionError, match="float32"):
        gluon(git_aiter).pa_decode_gluon(**given | {"key_scale": by_page.half()})
    with pytest.raises(AssertionError, match="same shape"):
        gluon(git_aiter).pa_decode_gluon(**given | {"key_scale": torch.ones(3)})
    three = dict.fromkeys(scales, torch.ones(3, 2, 16, 1))
    with pytest.raises(SilentlyWrong, match="key_scale has shape"):
        gluon(git_aiter).pa_decode_gluon(**given | three)


def test_the_results_of_gluon_lie_apart(git_aiter: ModuleType):
    given = gluon_arguments()
    given.pop("paged")
    with pytest.raises(SilentlyWrong, match="share memory"):
        gluon(git_aiter).pa_decode_gluon(**given | {"output": given["query"]})
    scratch = given["output"].view(3, 2, 1, 3, 64)
    with pytest.raises(SilentlyWrong, match="share memory"):
        gluon(git_aiter).pa_decode_gluon(**given, temporary_output=scratch)


@pytest.mark.parametrize(("arch", "expected"), [("gfx942", [8, 3, 1]), ("gfx950", [8, 2, 1])])
def test_gluon_recommends_partitions_that_fill_the_gpu(arch: str, expected: list[int]):
    with emulated_aiter("git", arch):
        module = importlib.import_module("aiter.ops.triton.gluon.pa_decode_gluon")
        assert [module.get_recommended_splits(n, 8) for n in (1, 32, 4096)] == expected
