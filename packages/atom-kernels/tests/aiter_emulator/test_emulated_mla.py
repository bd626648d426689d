"""Absorbed latent attention and the metadata of its persistent kernels, emulated."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from emulated_aiter import emulated_aiter
from tests.aiter_emulator.semantics import machine
from tests.aiter_emulator.semantics.errors import Refused, SilentlyWrong

BF16 = torch.bfloat16
CLOSE = {"rtol": 1e-2, "atol": 1e-2}
LENGTHS = [5, 40, 90]
METADATA = ("work_meta_data", "work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def step(heads: int = 16, queries: int = 1, page_size: int = 1, lengths: list[int] = LENGTHS, **changes) -> dict:
    """Arguments of mla_decode_fwd that both releases have; pages in no order; unused ones are NaN."""
    counts = [-(-length // page_size) for length in lengths]
    order = torch.randperm(sum(counts) + 3).to(torch.int32)
    cache = torch.randn(len(order), page_size, 1, 576).to(BF16)
    cache[order[sum(counts) :].long()] = float("nan")
    tokens = len(lengths) * queries
    given = {
        "q": torch.randn(tokens, heads, 576).to(BF16),
        "kv_buffer": cache,
        "o": torch.zeros(tokens, heads, 512, dtype=BF16),
        "qo_indptr": int32([i * queries for i in range(len(lengths) + 1)]),
        "kv_indptr": int32([sum(counts[:i]) for i in range(len(counts) + 1)]),
        "kv_indices": order[: sum(counts)].clone(),
        "kv_last_page_lens": int32([n - (c - 1) * page_size for n, c in zip(lengths, counts, strict=True)]),
        "max_seqlen_q": queries,
        "sm_scale": 0.07,
    }
    return given | {name: change(given[name]) if callable(change) else change for name, change in changes.items()}


def expected(given: dict) -> torch.Tensor:
    """By torch's own attention: keys are rows of the cache, values their first 512."""
    parts = []
    starts, pages = given["qo_indptr"].tolist(), given["kv_indptr"].tolist()
    for i, last in enumerate(given["kv_last_page_lens"].tolist()):
        rows = given["kv_buffer"][given["kv_indices"][pages[i] : pages[i + 1]].long()].float()
        page_size = rows.shape[1]
        rows = rows.reshape(-1, 576)[: (len(rows) - 1) * page_size + last]
        q = given["q"][starts[i] : starts[i + 1]].float().transpose(0, 1)
        mask = torch.ones(q.shape[1], len(rows), dtype=torch.bool).tril(len(rows) - q.shape[1])
        part = F.scaled_dot_product_attention(
            q, rows[None], rows[None, :, :512], attn_mask=mask, scale=given["sm_scale"]
        )
        parts.append(part.transpose(0, 1))
    return torch.cat(parts).to(BF16)


def metadata_for(package: ModuleType, given: dict, page_size: int = 1) -> dict:
    """The six buffers, allocated as the release says and filled for this step."""
    heads, batch = given["q"].shape[1], len(given["qo_indptr"]) - 1
    types = (given["q"].dtype, given["kv_buffer"].dtype)
    shapes = package.get_mla_metadata_info_v1(batch, given["max_seqlen_q"], heads, *types, False)
    buffers = dict(zip(METADATA, [torch.empty(shape, dtype=dtype) for shape, dtype in shapes], strict=True))
    fill(package, given, buffers, page_size)
    return buffers


def fill(package: ModuleType, given: dict, buffers: dict, page_size: int = 1, **changes) -> None:
    heads, causal = changes.pop("num_heads_k", 1), changes.pop("is_causal", True)
    heads, order = (given["q"].shape[1], heads), ["work_meta_data", "work_indptr", "work_info_set", *METADATA[3:]]
    lasts, options = (), {"max_seqlen_qo": given["max_seqlen_q"]} | changes
    if machine.release() == "git":
        order[1:3] = reversed(order[1:3])
        lasts = (given["kv_last_page_lens"],)
        options |= {"page_size": page_size, "dtype_q": given["q"].dtype, "dtype_kv": given["kv_buffer"].dtype}
    tensors = [buffers[name] for name in order]
    package.get_mla_metadata_v1(given["qo_indptr"], given["kv_indptr"], *lasts, *heads, causal, *tensors, **options)


def decode(package: ModuleType, given: dict, **more) -> torch.Tensor:
    importlib.import_module("aiter.mla").mla_decode_fwd(**given, **more)
    return given["o"]


@pytest.mark.parametrize(("heads", "queries"), [(16, 1), (16, 3), (128, 2)])
def test_decode_attends_to_rows_and_returns_their_first_512(aiter: ModuleType, heads: int, queries: int):
    given = step(heads, queries)
    torch.testing.assert_close(decode(aiter, given), expected(given), **CLOSE)


@pytest.mark.parametrize(("heads", "queries"), [(16, 1), (16, 4), (32, 1)])
def test_persistent_decode_follows_its_metadata(aiter: ModuleType, heads: int, queries: int):
    given = step(heads, queries)
    metadata = metadata_for(aiter, given)
    assert metadata["reduce_indptr"][-1] > 0
    torch.testing.assert_close(decode(aiter, given, **metadata), expected(given), **CLOSE)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize(("heads", "page_size"), [(16, 1), (64, 16), (128, 1)])
def test_git_decodes_over_pages_with_more_heads(arch: str, heads: int, page_size: int):
    with emulated_aiter("git", arch):
        package, _ = importlib.import_module("aiter"), importlib.import_module("aiter.mla")
        given = step(heads, page_size=page_size)
        metadata = metadata_for(package, given, page_size)
        _, sums = importlib.import_module("aiter.mla").mla_decode_fwd(**given, **metadata, page_size=page_size)
        assert sums is None
        torch.testing.assert_close(given["o"], expected(given), **CLOSE)


def test_an_fp8_cache_is_scaled(git_aiter: ModuleType):
    given = step()
    scale = torch.tensor([0.5])
    given["kv_buffer"] = (given["kv_buffer"].float() / 0.5).to(git_aiter.dtypes.fp8)
    decode(git_aiter, given, **metadata_for(git_aiter, given), kv_scale=scale)
    rounded = given | {"kv_buffer": given["kv_buffer"].float() * 0.5}
    torch.testing.assert_close(given["o"], expected(rounded), **CLOSE)
    with pytest.raises(Refused, match="requires kv_scale"):
        decode(git_aiter, given, **metadata_for(git_aiter, given))
    for wrong, words in ((torch.ones(2), "has 2 numbers"), (scale.half(), "kv_scale is torch.float16")):
        with pytest.raises(SilentlyWrong, match=words):
            decode(git_aiter, given, **metadata_for(git_aiter, given), kv_scale=wrong)


def test_results_lie_apart_from_queries(aiter: ModuleType):
    given = step()
    memory = torch.zeros(3, 16, 576, dtype=BF16)
    with pytest.raises(SilentlyWrong, match="share memory"):
        decode(aiter, given | {"q": memory, "o": memory.view(-1)[: 3 * 16 * 512].view(3, 16, 512)})


def test_pages_have_no_holes_and_a_size_that_is_shifted_by(git_aiter: ModuleType):
    given = step(page_size=16)
    wide = torch.cat([given["kv_buffer"], given["kv_buffer"]], -1)[..., :576]
    with pytest.raises(SilentlyWrong, match="a page must have no holes"):
        decode(git_aiter, given | {"kv_buffer": wide}, page_size=16)
    with pytest.raises(SilentlyWrong, match="shifts by a logarithm"):
        decode(git_aiter, step(page_size=24), page_size=24)


def test_sums_are_written_by_kernels_that_have_them(git_aiter: ModuleType):
    with pytest.raises(Refused, match="lse:1"):
        decode(git_aiter, step(), return_lse=True)
    with emulated_aiter("git", "gfx950"):
        package, module = importlib.import_module("aiter"), importlib.import_module("aiter.mla")
        given = step()
        _, sums = module.mla_decode_fwd(**given, **metadata_for(package, given), return_lse=True)
        rows = given["kv_buffer"][given["kv_indices"][:5].long()].view(5, 576).float()
        torch.testing.assert_close(sums[0], (given["q"][0].float() @ rows.T * 0.07).logsumexp(-1), **CLOSE)


def test_folded_heads_with_several_queries_get_new_memory(git_aiter: ModuleType):
    given = step(32, 2)
    memory = torch.zeros(7, 32, 512, dtype=BF16)
    given["o"] = memory[:6]
    decode(git_aiter, given, **metadata_for(git_aiter, given))
    torch.testing.assert_close(given["o"], expected(given), **CLOSE)
    assert (memory == 0).all()
    given["qo_indptr"] = int32([0, 1, 4, 6])
    with pytest.raises(SilentlyWrong, match="every sequence has max_seqlen_q"):
        decode(git_aiter, given | {"max_seqlen_q": 3}, **metadata_for(git_aiter, given | {"max_seqlen_q": 3}))


def test_metadata_is_filled_again_in_place_and_found_if_it_is_not(aiter: ModuleType):
    given = step()
    metadata = metadata_for(aiter, given)
    longer = step(lengths=[6, 41, 91])
    with pytest.raises(SilentlyWrong, match="stale"):
        decode(aiter, longer, **metadata)
    fill(aiter, longer, metadata)
    torch.testing.assert_close(decode(aiter, longer, **metadata), expected(longer), **CLOSE)


@pytest.mark.parametrize("name", ["work_indptr", "work_info_set"])
def test_buffers_that_the_pointers_do_not_name_are_found(aiter: ModuleType, name: str):
    given = step()
    metadata = metadata_for(aiter, given)
    metadata[name] = metadata[name].clone()
    with pytest.raises(SilentlyWrong, match="names other buffers"):
        decode(aiter, given, **metadata)


@pytest.mark.parametrize("name", METADATA[3:])
def test_results_are_summed_up_as_the_maps_say(aiter: ModuleType, name: str):
    given = step()
    metadata = metadata_for(aiter, given)
    metadata[name] = torch.zeros_like(metadata[name])
    with pytest.raises((SilentlyWrong, AssertionError), match="stale|not close"):
        torch.testing.assert_close(decode(aiter, given, **metadata), expected(given), **CLOSE)


def test_metadata_for_other_heads_is_found(git_aiter: ModuleType):
    given = step(32)
    metadata = metadata_for(git_aiter, given | {"q": step(16)["q"]})
    with pytest.raises(SilentlyWrong, match="of other heads"):
        decode(git_aiter, given, **metadata)


def test_128_heads_of_the_release_on_pypi_are_folded_by_the_kernel_only(pypi_aiter: ModuleType):
    given = step(128)
    with pytest.raises(SilentlyWrong, match="of other heads"):
        decode(pypi_aiter, given, **metadata_for(pypi_aiter, given))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"kv_granularity": 24}, Refused, "power of 2"),
        ({"qo_indptr": torch.Tensor.long}, Refused, "element type should be int"),
        ({"kv_indptr": lambda starts: starts.repeat_interleave(2)[::2]}, Refused, "should be continuous"),
        ({"kv_indptr": lambda starts: starts + 1}, SilentlyWrong, r"seqlens_kv_indptr is \[1"),
        ({"kv_indptr": lambda starts: starts[:3]}, SilentlyWrong, "2 of keys"),
        ({"num_heads_k": 2}, SilentlyWrong, "num_heads_k is 2"),
        (
            {"qo_indptr": int32([0, 2, 4, 6]), "is_causal": False, "max_seqlen_qo": 2},
            SilentlyWrong,
            "is_causal is False",
        ),
        ({"qo_indptr": int32([0, 2, 4, 6])}, SilentlyWrong, "max_seqlen_qo is 1"),
        ({"topk": 64}, NotImplementedError, "sparse"),
        ({"uni_seqlen_qo": 2}, SilentlyWrong, "uni_seqlen_qo"),
    ],
)
def test_metadata_refuses_and_finds(aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    given = step()
    metadata = metadata_for(aiter, given)
    for name in changes.keys() & {"qo_indptr", "kv_indptr"}:
        given[name] = changes[name](given[name]) if callable(changes[name]) else changes[name]
    options = {name: value for name, value in changes.items() if name not in given}
    with pytest.raises(error, match=words):
        fill(aiter, given, metadata, **options)


@pytest.mark.parametrize(
    ("lasts", "words"),
    [
        (int32([1, 1]), "another batch size"),
        (int32([1, 2, 1]), "for pages of 1"),
        (torch.ones(3, dtype=torch.int64), "is torch.int64"),
    ],
)
def test_git_looks_at_the_lengths_of_last_pages(git_aiter: ModuleType, lasts: torch.Tensor, words: str):
    given = step()
    metadata = metadata_for(git_aiter, given)
    with pytest.raises(SilentlyWrong, match=words):
        fill(git_aiter, given | {"kv_last_page_lens": lasts}, metadata)


@pytest.mark.parametrize(("release", "heads"), [("pypi", 24), ("pypi", 256), ("git", 24)])
def test_metadata_of_heads_that_no_kernel_has_is_refused(release: str, heads: int):
    with emulated_aiter(release):
        package, _ = importlib.import_module("aiter"), importlib.import_module("aiter.mla")
        metadata = metadata_for(package, step())
        with pytest.raises(Refused, match="only supports|not supported"):
            fill(package, step(heads), metadata)


def test_metadata_that_has_no_room_is_found(aiter: ModuleType):
    metadata = metadata_for(aiter, step())
    small = metadata | {"reduce_final_map": metadata["reduce_final_map"][:2]}
    with pytest.raises(SilentlyWrong, match="reduce_final_map has 2 rows"):
        fill(aiter, step(), small)
    for name, wrong, words in (
        ("work_meta_data", metadata["work_meta_data"][:1], "two addresses"),
        ("work_meta_data", metadata["work_meta_data"].view(torch.int64), "work_metadata_ptrs is torch.int64"),
        ("reduce_final_map", metadata["reduce_final_map"].flatten(), r"\[tiles, 2\]"),
        ("reduce_indptr", metadata["reduce_indptr"][None], "has 2 dimensions"),
        ("reduce_indptr", metadata["reduce_indptr"].long(), "reduce_indptr is torch.int64"),
        ("reduce_partial_map", metadata["reduce_partial_map"][::2], "takes it as contiguous"),
    ):
        with pytest.raises(SilentlyWrong, match=words):
            fill(aiter, step(), metadata | {name: wrong})
    swapped = metadata | {"work_indptr": metadata["work_info_set"], "work_info_set": metadata["work_indptr"]}
    with pytest.raises(SilentlyWrong, match=r"work_info is \[works, 8\]"):
        fill(aiter, step(), swapped)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"q": lambda q: q.transpose(0, 1).contiguous().transpose(0, 1)}, Refused, "is_contiguous"),
        ({"q": torch.Tensor.half}, Refused, "unsupport Q dtype"),
        ({"logit_cap": 1.0}, AssertionError, "not support"),
        ({"o": torch.empty(3, 16, 576, dtype=BF16)}, SilentlyWrong, "o has shape"),
        ({"o": torch.empty(3, 16, 512)}, SilentlyWrong, "o is torch.float32"),
        ({"kv_indices": torch.Tensor.long}, SilentlyWrong, "kv_indices is torch.int64"),
        ({"kv_indices": lambda ids: ids + 9}, SilentlyWrong, "do not exist"),
        ({"kv_indptr": lambda starts: starts + 1}, SilentlyWrong, "begins at 1"),
        ({"kv_indptr": int32([0, 5, 45, 136])}, SilentlyWrong, "ends at 136"),
        ({"kv_last_page_lens": int32([1, 1, 0])}, SilentlyWrong, "for pages of 1"),
        ({"kv_last_page_lens": int32([1, 1])}, SilentlyWrong, "2 entries for 3"),
        ({"kv_last_page_lens": torch.Tensor.long}, SilentlyWrong, "kv_last_page_lens is torch.int64"),
        ({"kv_indptr": torch.Tensor.long}, SilentlyWrong, "kv_indptr is torch.int64"),
        ({"kv_indptr": int32([0, 5, 45])}, SilentlyWrong, "3 sequences of queries, 2 of keys"),
        ({"q": lambda q: q[..., :512].contiguous()}, SilentlyWrong, "q has shape"),
        ({"o": torch.empty(3, 16, 513, dtype=BF16)[..., :512]}, SilentlyWrong, "o has strides"),
        ({"queries": 2, "lengths": [1, 40, 90]}, SilentlyWrong, "2 queries at 1 tokens"),
        ({"kv_buffer": torch.Tensor.half}, Refused, "unsupport KV dtype"),
        ({"qo_indptr": int32([0, 1, 3])}, SilentlyWrong, "max_seqlen_q is 1"),
        ({"kv_buffer": lambda kv: kv.expand(-1, -1, 2, -1)}, SilentlyWrong, "kv_buffer has shape"),
    ],
)
def test_decode_refuses_and_finds(aiter: ModuleType, changes: dict, error: type[Exception], words: str):
    logit_cap = changes.get("logit_cap", 0.0)
    given = step(**{name: value for name, value in changes.items() if name != "logit_cap"})
    with pytest.raises(error, match=words):
        decode(aiter, given, logit_cap=logit_cap)


@pytest.mark.parametrize(
    ("release", "arch", "heads", "queries", "persistent"),
    [
        ("pypi", "gfx942", 32, 1, False),
        ("pypi", "gfx942", 64, 2, True),
        ("git", "gfx942", 8, 2, False),
        ("git", "gfx942", 8, 1, True),
        ("git", "gfx942", 24, 1, True),
        ("git", "gfx942", 16, 5, True),
        ("git", "gfx950", 48, 1, False),
    ],
)
def test_kernels_that_do_not_exist_are_refused(release: str, arch: str, heads: int, queries: int, persistent: bool):
    with emulated_aiter(release, arch):
        package, _ = importlib.import_module("aiter"), importlib.import_module("aiter.mla")
        given = step(heads, queries)
        more = dict.fromkeys(METADATA)
        if persistent:
            more = metadata_for(package, step(16, min(queries, 4)))
        with pytest.raises((Refused, AssertionError), match="not supported|cannot get heuristic kernel"):
            decode(package, given, **more)


def test_pages_of_the_release_on_pypi_are_of_one_token(pypi_aiter: ModuleType):
    with pytest.raises(SilentlyWrong, match="pages are of one"):
        decode(pypi_aiter, step(page_size=16))


def test_git_is_told_the_page_size(git_aiter: ModuleType):
    with pytest.raises(SilentlyWrong, match="kv_buffer has shape"):
        decode(git_aiter, step(page_size=16))


@pytest.mark.parametrize("heads", [16, 128])
def test_prefill_is_causal_over_any_number_of_queries(aiter: ModuleType, heads: int):
    given = step(heads)
    given |= {"q": torch.randn(12, heads, 576).to(BF16), "o": torch.zeros(12, heads, 512, dtype=BF16)}
    given |= {"qo_indptr": int32([0, 5, 6, 12]), "max_seqlen_q": 6}
    o, sums = importlib.import_module("aiter.mla").mla_prefill_fwd(**given)
    assert sums.shape == (12, 1, heads, 1)
    torch.testing.assert_close(o, expected(given), **CLOSE)


def test_prefill_needs_a_scale_and_heads_that_it_has(aiter: ModuleType):
    prefill = importlib.import_module("aiter.mla").mla_prefill_fwd
    with pytest.raises(UnboundLocalError):
        prefill(**step(sm_scale=None))
    with pytest.raises(Refused, match="16 or 128"):
        prefill(**step(32))
    for changes, error, words in (
        ({"q": torch.Tensor.half}, Refused, "unsupport current Q_type"),
        ({"kv_buffer": torch.Tensor.half}, SilentlyWrong, "kv_buffer is torch.float16"),
        ({"max_seqlen_q": 0}, SilentlyWrong, "max_seqlen_q is 0"),
        ({"kv_indptr": int32([0, 5, 45])}, SilentlyWrong, "2 of keys"),
        ({"q": lambda q: q.transpose(0, 1).contiguous().transpose(0, 1)}, Refused, "only support Q.is_contiguous"),
        ({"o": lambda o: o[:2]}, SilentlyWrong, "o has shape"),
    ):
        with pytest.raises(error, match=words):
            prefill(**step(**changes))


def test_parts_are_summed_up_by_their_sums(aiter: ModuleType):
    outputs, sums = torch.randn(4, 1, 16, 512), torch.randn(4, 1, 16, 1)
    final, lse = torch.zeros(3, 16, 512, dtype=BF16), torch.zeros(3, 16)
    maps = (int32([0, 0, 2]), torch.tensor([[0, 0], [1, 3]], dtype=torch.int32), int32([0, 2]))
    longest = (2, 0) if machine.release() == "git" else ()
    aiter.mla_reduce_v1(outputs, sums, *maps, *longest, final, lse)
    weights = torch.stack([sums[:2, 0], sums[2:, 0]]).softmax(0)
    expected = (weights * torch.stack([outputs[:2, 0], outputs[2:, 0]])).sum(0)
    torch.testing.assert_close(final[1:], expected.to(BF16), **CLOSE)
    assert (final[0] == 0).all()
    with pytest.raises(Refused, match="partial_output must be float32"):
        aiter.mla_reduce_v1(outputs.half(), sums, *maps, *longest, final, lse)
