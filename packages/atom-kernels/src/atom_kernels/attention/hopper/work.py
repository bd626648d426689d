"""The work of `hopper_prefill_kernel`: what an item is, and how the warp that takes it tells the others of it."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

_WORDS = gl.constexpr(8)
# Requests that one warp looks at together. A constant, so that Triton does not compile for each number of them.
_REQUESTS = gl.constexpr(128)


@gluon.jit
def find_tile(item, chunks, BLOCK_T: gl.constexpr):
    """Item of work `item`: run of heads, request, its first token and tokens and length, first query of the tile.

    Tiles that see the most keys come first, of `band` runs in turn, whose keys stay in the L2 cache meanwhile.
    """
    query_start_loc_ptr, seq_lens_ptr, num_requests, num_tiles, band = chunks
    within = item % (num_tiles * band)
    run = item // (num_tiles * band) * band + within % band
    tile = num_tiles - 1 - within // band
    base = gl.load(query_start_loc_ptr)
    # The request of a tile: the last whose first tile is not past it.
    request = -1
    for at in range(0, num_requests, _REQUESTS):
        requests = at + gl.arange(0, _REQUESTS, gl.BlockedLayout([1], [32], [1], [0]))
        inside = requests < num_requests
        starts = gl.load(query_start_loc_ptr + requests, mask=inside, other=0) - base
        first_tiles = starts // BLOCK_T + requests
        request += gl.sum(((first_tiles <= tile) & inside).to(gl.int32), axis=0)
    start = gl.load(query_start_loc_ptr + request)
    num_queries = gl.load(query_start_loc_ptr + request + 1) - start
    first_query = (tile - (start - base) // BLOCK_T - request) * BLOCK_T
    return run, request, start, num_queries, gl.load(seq_lens_ptr + request), first_query


@gluon.jit
def tell(mail, turn, run, request, start, num_queries, length, first_query, num_tiles):
    """Tell the other warps their next tile of queries and its tiles of keys; no tiles mean the end."""
    words, told, heard = mail
    slot = turn % words.shape[0]
    at = gl.arange(0, _WORDS, gl.BlockedLayout([_WORDS], [32], [1], [0]))
    message = gl.where(at == 0, run, gl.where(at == 1, request, gl.where(at == 2, start, num_queries)))
    message = gl.where(at == 4, length, gl.where(at == 5, first_query, gl.where(at == 6, num_tiles, message)))
    mbarrier.wait(heard.index(slot), (turn // words.shape[0] + 1) & 1)
    words.index(slot).store(message)
    mbarrier.arrive(told.index(slot))


@gluon.jit
def hear(mail, turn, WARPS: gl.constexpr):
    """What `tell` sent, read in a partition of WARPS warps."""
    words, told, heard = mail
    slot = turn % words.shape[0]
    mbarrier.wait(told.index(slot), (turn // words.shape[0]) & 1)
    layout: gl.constexpr = gl.BlockedLayout([_WORDS], [32], [WARPS], [0])
    message = words.index(slot).load(layout)
    mbarrier.arrive(heard.index(slot))
    run, request, start, num_queries = _word(message, 0), _word(message, 1), _word(message, 2), _word(message, 3)
    return run, request, start, num_queries, _word(message, 4), _word(message, 5), _word(message, 6)


@gluon.jit
def _word(message, index: gl.constexpr):
    return gl.sum(gl.where(gl.arange(0, _WORDS, message.type.layout) == index, message, 0), axis=0)
