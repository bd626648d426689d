"""Sums over ranks in Triton: every rank reads and writes the others' buffers, see `buffers`.

All of them add in float32 in the order of the ranks and round once, so their bits are equal on all ranks and whichever
kernel is chosen. With `NORM` a tile is a row, and what follows is done to the sum while it is in registers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.triton.support import wait_for_inputs


@triton.jit
def _buffer(addresses_ptr, RANK: tl.constexpr, OFFSET: tl.constexpr, dtype: tl.constexpr):
    """Where a rank's numbers of that type begin, so many bytes into its buffer."""
    address = tl.load(addresses_ptr + RANK) + OFFSET
    return tl.multiple_of(address.to(tl.pointer_type(dtype)), 16)


@triton.jit
def _count(calls_ptr, call):
    """Says that this program knows the call's number; the last one to do so counts the call."""
    others = tl.atomic_add(calls_ptr + 1, 1, sem="relaxed")
    if others == tl.num_programs(0) - 1:
        tl.store(calls_ptr + 1, 0)
        tl.store(calls_ptr, call)


@triton.jit
def _unpacked(words, DTYPE: tl.constexpr):
    """Both numbers of each word, as float32; of a word that is one number of float32, itself and zero."""
    if DTYPE == tl.float32:  # noqa: SIM300
        low = words.to(tl.float32, bitcast=True)
        return low, tl.zeros_like(low)
    else:
        low = words.to(tl.int16).to(DTYPE, bitcast=True)
        high = (words >> 16).to(tl.int16).to(DTYPE, bitcast=True)
        return low.to(tl.float32), high.to(tl.float32)


@triton.jit
def _packed(low, high, DTYPE: tl.constexpr):
    if DTYPE == tl.float32:  # noqa: SIM300
        return low.to(tl.int32, bitcast=True)
    else:
        low_bits = low.to(DTYPE).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        return low_bits | (high.to(DTYPE).to(tl.int16, bitcast=True).to(tl.int32) << 16)


@triton.jit
def _received(packets_ptr, call, inside):
    """The words of packets, once all of them are of this call."""
    packets = tl.load(packets_ptr, mask=inside, other=0, volatile=True)
    missing = tl.max(tl.where(inside & ((packets >> 32) != call), 1, 0), axis=0)
    while missing != 0:
        packets = tl.load(packets_ptr, mask=inside, other=0, volatile=True)
        missing = tl.max(tl.where(inside & ((packets >> 32) != call), 1, 0), axis=0)
    return packets.to(tl.int32)


@triton.jit
def sum_packets_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, addresses_ptr, calls_ptr, num_words, eps, offset,
    RANK: tl.constexpr, RANKS: tl.constexpr, PACKETS: tl.constexpr, MAX_WORDS: tl.constexpr,
    DTYPE: tl.constexpr, NORM: tl.constexpr, WIDTH: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Each rank sends its words to all others, as packets that say by themselves that they have come: one way, no
    fence. All tensors are seen as words of 32 bits, of which a program has `SIZE`; `WIDTH` numbers are normed.
    """
    columns = tl.arange(0, BLOCK)
    at = tl.program_id(0) * SIZE + columns
    inside = (columns < SIZE) & (at < num_words)
    if NORM:
        weight_low, weight_high = _unpacked(tl.load(weight_ptr + columns, mask=inside, other=0), DTYPE)
    wait_for_inputs(DEPENDENT)
    call = tl.load(calls_ptr) + 1
    half = (call & 1) * (RANKS * MAX_WORDS)
    mine = tl.load(x_ptr + at, mask=inside, other=0)
    packets = (mine.to(tl.int64) & 0xFFFFFFFF) | (call.to(tl.int64) << 32)
    for step in tl.static_range(1, RANKS):
        theirs = _buffer(addresses_ptr, (RANK + step) % RANKS, PACKETS, tl.int64)
        tl.store(theirs + half + RANK * MAX_WORDS + at, packets, mask=inside)
    _count(calls_ptr, call)
    if NORM:
        residual_low, residual_high = _unpacked(tl.load(residual_ptr + at, mask=inside, other=0), DTYPE)
    received = _buffer(addresses_ptr, RANK, PACKETS, tl.int64) + half
    low = tl.zeros([BLOCK], tl.float32)
    high = tl.zeros([BLOCK], tl.float32)
    for source in tl.static_range(RANKS):
        words = mine
        if source != RANK:
            words = _received(received + source * MAX_WORDS + at, call, inside)
        part_low, part_high = _unpacked(words, DTYPE)
        low += part_low
        high += part_high
    if NORM:
        low = (low.to(DTYPE).to(tl.float32) + residual_low).to(DTYPE).to(tl.float32)
        high = (high.to(DTYPE).to(tl.float32) + residual_high).to(DTYPE).to(tl.float32)
        tl.store(total_ptr + at, _packed(low, high, DTYPE), mask=inside)
        scale = 1.0 / tl.sqrt(tl.sum(low * low + high * high, axis=0) / WIDTH + eps)
        low = low * scale * (weight_low + offset)
        high = high * scale * (weight_high + offset)
    tl.store(out_ptr + at, _packed(low, high, DTYPE), mask=inside)


@triton.jit
def _exchange(addresses_ptr, at, call, RANK: tl.constexpr, RANKS: tl.constexpr):
    """Tells this program of all ranks that what was written before can be read, and waits for it to say so."""
    tl.debug_barrier()
    ranks = tl.arange(0, RANKS)
    flags = tl.load(addresses_ptr + ranks).to(tl.pointer_type(tl.int32)) + at
    tl.atomic_xchg(flags + RANK, tl.zeros([RANKS], tl.int32) + call, sem="release", scope="sys")
    own = tl.load(addresses_ptr + RANK).to(tl.pointer_type(tl.int32)) + at + ranks
    nothing = tl.zeros([RANKS], tl.int32)
    missing = tl.max((tl.atomic_add(own, nothing, sem="acquire", scope="sys") != call).to(tl.int32), axis=0)
    while missing != 0:
        missing = tl.max((tl.atomic_add(own, nothing, sem="acquire", scope="sys") != call).to(tl.int32), axis=0)
    tl.debug_barrier()


@triton.jit
def _flags_of(call, PHASE: tl.constexpr, MAX_PROGRAMS: tl.constexpr, RANKS: tl.constexpr):
    """The place of this program's first flag."""
    return (((call & 1) * 2 + PHASE) * MAX_PROGRAMS + tl.program_id(0)) * RANKS


@triton.jit
def _sum_of_parts(addresses_ptr, place, inside, RANKS: tl.constexpr, PARTS: tl.constexpr, x_ptr, BLOCK: tl.constexpr):
    """The sum of the ranks' parts at a place, rounded."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    total = tl.zeros([BLOCK], tl.float32)
    for source in tl.static_range(RANKS):
        part = tl.load(_buffer(addresses_ptr, source, PARTS, dtype) + place, mask=inside, other=0.0, volatile=True)
        total += part.to(tl.float32)
    return total.to(dtype)


@triton.jit
def finish_tile(
    summed, at, columns, inside, residual_ptr, weight_ptr, out_ptr, total_ptr, eps, offset,
    NORM: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Writes a sum, or what becomes of it."""
    if NORM:
        residual = tl.load(residual_ptr + at, mask=inside, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32) + offset
        rounded = (summed.to(tl.float32) + residual).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + at, rounded, mask=inside)
        total = rounded.to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(total * total, axis=0) / SIZE + eps)
        tl.store(out_ptr + at, (total * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(out_ptr + at, summed, mask=inside)


@triton.jit
def sum_at_once_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, addresses_ptr, calls_ptr, num_elements, eps, offset,
    RANK: tl.constexpr, RANKS: tl.constexpr, PARTS: tl.constexpr, MAX_ELEMENTS: tl.constexpr,
    MAX_PROGRAMS: tl.constexpr, NORM: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """One shot: each rank shows its part, and every rank reads and sums all of them."""
    columns = tl.arange(0, BLOCK)
    num_tiles = tl.cdiv(num_elements, SIZE)
    wait_for_inputs(DEPENDENT)
    call = tl.load(calls_ptr) + 1
    half = (call & 1) * MAX_ELEMENTS
    mine = _buffer(addresses_ptr, RANK, PARTS, x_ptr.dtype.element_ty) + half
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        at = tile * SIZE + columns
        inside = (columns < SIZE) & (at < num_elements)
        tl.store(mine + at, tl.load(x_ptr + at, mask=inside), mask=inside)
    _count(calls_ptr, call)
    _exchange(addresses_ptr, _flags_of(call, 0, MAX_PROGRAMS, RANKS), call, RANK, RANKS)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        at = tile * SIZE + columns
        inside = (columns < SIZE) & (at < num_elements)
        summed = _sum_of_parts(addresses_ptr, half + at, inside, RANKS, PARTS, x_ptr, BLOCK)
        finish_tile(
            summed, at, columns, inside, residual_ptr, weight_ptr, out_ptr, total_ptr, eps, offset, NORM, SIZE
        )  # fmt: skip


@triton.jit
def sum_in_two_kernel(
    x_ptr, residual_ptr, weight_ptr, out_ptr, total_ptr, addresses_ptr, calls_ptr, num_elements, eps, offset,
    RANK: tl.constexpr, RANKS: tl.constexpr, PARTS: tl.constexpr, SUMS: tl.constexpr, MAX_ELEMENTS: tl.constexpr,
    MAX_PROGRAMS: tl.constexpr, NORM: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Two shots: of each group of as many tiles as ranks, a rank sums the tile of its number and sends it to all."""
    dtype: tl.constexpr = x_ptr.dtype.element_ty
    columns = tl.arange(0, BLOCK)
    num_groups = tl.cdiv(num_elements, SIZE * RANKS)
    wait_for_inputs(DEPENDENT)
    call = tl.load(calls_ptr) + 1
    half = (call & 1) * MAX_ELEMENTS
    mine = _buffer(addresses_ptr, RANK, PARTS, dtype) + half
    for group in range(tl.program_id(0), num_groups, tl.num_programs(0)):
        for number in tl.static_range(RANKS):
            at = (group * RANKS + number) * SIZE + columns
            inside = (columns < SIZE) & (at < num_elements)
            tl.store(mine + at, tl.load(x_ptr + at, mask=inside), mask=inside)
    _count(calls_ptr, call)
    _exchange(addresses_ptr, _flags_of(call, 0, MAX_PROGRAMS, RANKS), call, RANK, RANKS)
    for group in range(tl.program_id(0), num_groups, tl.num_programs(0)):
        at = (group * RANKS + RANK) * SIZE + columns
        inside = (columns < SIZE) & (at < num_elements)
        summed = _sum_of_parts(addresses_ptr, half + at, inside, RANKS, PARTS, x_ptr, BLOCK)
        for step in tl.static_range(RANKS):
            theirs = _buffer(addresses_ptr, (RANK + step) % RANKS, SUMS, dtype) + half
            tl.store(theirs + at, summed, mask=inside)
    _exchange(addresses_ptr, _flags_of(call, 1, MAX_PROGRAMS, RANKS), call, RANK, RANKS)
    sums = _buffer(addresses_ptr, RANK, SUMS, dtype) + half
    for group in range(tl.program_id(0), num_groups, tl.num_programs(0)):
        for number in tl.static_range(RANKS):
            at = (group * RANKS + number) * SIZE + columns
            inside = (columns < SIZE) & (at < num_elements)
            summed = tl.load(sums + at, mask=inside, other=0.0, volatile=True)
            finish_tile(
                summed, at, columns, inside, residual_ptr, weight_ptr, out_ptr, total_ptr, eps, offset, NORM, SIZE
            )  # fmt: skip
