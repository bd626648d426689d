"""Cache layouts of AITER: element by element where the contract says, and back to what they were made of."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.aiter.attention import layouts
from atom_kernels.aiter.attention.pages import READ_AHEAD, list_pages, list_tokens
from atom_kernels.attention.ops import make_problem
from atom_kernels.protocols.kv_cache import CacheLayout

SHAPES = [(3, 16, 2, 128), (1, 32, 1, 64), (2, 16, 3, 80), (5, 64, 2, 16)]
DTYPES = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e4m3fnuz]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def numbered(shape, dtype):
    """Different bytes in every element that is near another."""
    size = torch.Size(shape).numel() * dtype.itemsize
    return (torch.arange(size) * 37 % 120).to(torch.uint8).view(dtype).view(shape)


def same(got, expected):
    return got.shape == expected.shape and torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


@every_shape
@every_dtype
def test_what_is_packed_comes_back(shape, dtype):
    blocks = numbered(shape, dtype)
    assert same(layouts.unpack_keys(layouts.pack_keys(blocks)), blocks)
    assert same(layouts.unshuffle_values(layouts.shuffle_values(blocks)), blocks)


@every_shape
@every_dtype
def test_each_element_lies_where_the_kernels_look_for_it(shape, dtype):
    blocks = numbered(shape, dtype)
    packed, shuffled = layouts.pack_keys(blocks), layouts.shuffle_values(blocks)
    width = 16 // dtype.itemsize
    block, token, head, element = shape[0] - 1, 13, shape[2] - 1, shape[3] - 3
    wanted = blocks[block, token, head, element].reshape(1)
    places = (
        packed[block, head, element // width, token, element % width],
        shuffled[block, head, token // width, element, token % width],
    )
    assert all(same(place.reshape(1), wanted) for place in places)


@pytest.mark.parametrize("make", [layouts.shuffled_layout, layouts.scaled_layout])
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fnuz"])
def test_a_layout_allocates_what_its_packing_gives(make, dtype):
    problem = make_problem(8, 2, 128, "bfloat16", kv_cache_dtype=dtype)
    layout = make(problem)
    rows = torch.randn(5, 16, 2, 128).to(getattr(torch, dtype))
    made = layouts.from_nhd(layout, rows, rows)
    allocated = layout.allocate(5)
    assert [(x.shape, x.dtype) for x in made] == [(x.shape, x.dtype) for x in allocated]
    assert layout.block_bytes == sum(x[0].numel() * x.itemsize for x in allocated)


def test_blocks_that_are_copied_or_shared_keep_their_tokens():
    problem = make_problem(8, 2, 128, "bfloat16")
    layout = layouts.shuffled_layout(problem)
    keys, values = (torch.randn(4, 16, 2, 128).bfloat16() for _ in range(2))
    moved = torch.tensor([2, 0, 0, 3])
    cache = tuple(x[moved] for x in layouts.from_nhd(layout, keys, values))
    assert all(map(torch.equal, layouts.restore_nhd(layout, cache), (keys[moved], values[moved])))


def test_a_layout_that_is_not_of_aiter_is_refused_both_ways():
    layout = CacheLayout("woven", 16, ())
    keys = torch.zeros(1, 16, 2, 128)
    for convert in (lambda: layouts.from_nhd(layout, keys, keys), lambda: layouts.restore_nhd(layout, (keys, keys))):
        with pytest.raises(ValueError, match="the cache layout woven is neither NHD nor one of AITER's"):
            convert()


@pytest.mark.parametrize("dtype", DTYPES[2:], ids=str)
def test_rows_are_given_back_by_their_scales(dtype):
    rows = torch.randn(7, 3, 64) * torch.logspace(-3, 3, 7)[:, None, None]
    rows[2, 1] = 0
    values, scales = layouts.quantize_rows(rows, dtype)
    restored = values.float() * scales.unsqueeze(-1)
    assert ((restored - rows).abs() <= rows.abs().amax(-1, keepdim=True) / 16).all()
    assert restored[2, 1].abs().max() == 0


@pytest.mark.parametrize(
    ("overrides", "words"), [({"block_size": 4}, "blocks of 4"), ({"kv_cache_dtype": "float8_e4m3fn"}, None)]
)
def test_blocks_that_cannot_be_cut_are_refused_with_the_width(overrides, words):
    reason = layouts.why_not_shuffled(make_problem(4, 2, 128, "bfloat16", **overrides))
    assert reason is None if words is None else words in reason


def test_pages_are_listed_request_by_request_with_page_zero_behind():
    table = torch.tensor([[7, 8, 10**6], [10**6, 10**6, 10**6], [3, 2, 1]], dtype=torch.int32)
    pages = list_pages(table, torch.tensor([17, 0, 48], dtype=torch.int32), 16, 48)
    assert pages.indptr.tolist() == [0, 2, 2, 5]
    assert pages.indices[:5].tolist() == [7, 8, 3, 2, 1]
    assert pages.indices[5:].abs().max() == 0
    assert pages.indices.shape[0] >= 5 + READ_AHEAD
    assert pages.last_page_lens[[0, 2]].tolist() == [1, 16]
    assert {x.dtype for x in (pages.indptr, pages.indices, pages.last_page_lens)} == {torch.int32}


def test_tokens_are_listed_by_their_slots():
    table = torch.tensor([[7, 10**6], [2, 5]], dtype=torch.int32)
    pages = list_tokens(table, torch.tensor([3, 6], dtype=torch.int32), 4, 6)
    assert pages.indptr.tolist() == [0, 3, 9]
    assert pages.indices[:9].tolist() == [28, 29, 30, 8, 9, 10, 11, 20, 21]
    assert pages.indices[9:].abs().max() == 0
    assert pages.last_page_lens.tolist() == [1, 1]


def test_a_list_has_room_for_what_the_host_knows_of():
    table = torch.tensor([[7, 10**6], [2, 5]], dtype=torch.int32)
    lengths = torch.tensor([3, 6], dtype=torch.int32)
    whole, known = (list_tokens(table, lengths, 4, 6, total) for total in (None, 9))
    assert (whole.indices.shape[0], known.indices.shape[0]) == (16 + READ_AHEAD, 9 + READ_AHEAD)
    assert torch.equal(whole.indices[:9], known.indices[:9])
    assert known.indices[9:].abs().max() == 0
