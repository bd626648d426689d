"""The custom all-reduce: ranks are threads of one process, which meet at a barrier in each call.

A handle stands for an address, and a group for what one rank knows of all others: where their flags and buffers are.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .checks import check_apart, check_dtype, check_shape, detect_unless, refuse_dtype, refuse_unless
from .norm import HALVES

FLAG_BYTES, HANDLE_BYTES, _MARK = 5504, 64, b"aiter emulator handle"
_WAIT_SECONDS = 30
# Numbers of the summands' bytes in the ranks' memory, and of the memory that was given out.
_allocated: dict[int, Tensor] = {}
_groups: list[Group] = []
_meetings: dict[tuple[int, ...], Meeting] = {}
_lock = threading.Lock()


@dataclass
class Meeting:
    """Where the ranks of a group wait for each other; `calls` has what each of them is in."""

    barrier: threading.Barrier
    calls: list[Any]


@dataclass
class Group:
    rank: int
    flags: tuple[int, ...]
    meeting: Meeting
    buffers: dict[int, list[int]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self.flags)


def allocate(size: int) -> int:
    """Zeros, and their address."""
    memory = torch.zeros(size, dtype=torch.uint8)
    _allocated[memory.data_ptr()] = memory
    return memory.data_ptr()


def write_handle(address: int, into: int) -> None:
    """64 bytes by which another process opens the allocation at an address."""
    text = _MARK + address.to_bytes(8, "little")
    ctypes.memmove(into, text.ljust(HANDLE_BYTES, b"\0"), HANDLE_BYTES)


def begin(
    flags: int, table_bytes: int, handle_ptrs: list[int], offsets: list[int], rank: int, fully_connected: bool
) -> int:
    """The number of a new group."""
    size = len(offsets)
    refuse_unless(size <= 8, "world size > 8 is not supported")
    refuse_unless(size % 2 == 0, "Odd num gpus is not supported for now")
    refuse_unless(len(handle_ptrs) == size, "handles length should equal to offsets length")
    refuse_unless(0 <= rank < size, "invalid rank passed in")
    refuse_unless(table_bytes >= 8 * size, "Rank data buffer is overflow")
    detect_unless(fully_connected, "without links among all of them more than two ranks sum nothing")
    opened = tuple(_opened(handle_ptrs, offsets))
    detect_unless(len(set(opened)) == size, "two ranks have one set of flags: the handles are not those of all ranks")
    detect_unless(opened[rank] == flags, f"the handle in place {rank} is not that of this rank's own flags")
    with _lock:
        meeting = _meetings.setdefault(opened, Meeting(threading.Barrier(size), [None] * size))
        _groups.append(Group(rank, opened, meeting))
        return len(_groups) - 1


def register(group: int, own: int, handle_ptrs: list[int], offsets: list[int]) -> None:
    """The buffers of all ranks, known by the address of this rank's own."""
    known = _groups[group]
    refuse_unless(len(handle_ptrs) == len(offsets) == known.size, "a handle and an offset for each rank")
    opened = _opened(handle_ptrs, offsets)
    detect_unless(len(set(opened)) == known.size, "two ranks have one buffer")
    detect_unless(opened[known.rank] == own, f"the handle in place {known.rank} is not that of this rank's own buffer")
    known.buffers[own] = opened


def size_of(group: int) -> int:
    """The ranks of a group."""
    return _groups[group].size


def all_reduce(group: int, inp: Tensor, out: Tensor, quantizes: bool, buffer: int, num_bytes: int) -> None:
    """Writes the sum of all ranks' `inp`, which may be the same memory."""
    refuse_unless(inp.dtype == out.dtype, f"inp is {inp.dtype}, out {out.dtype}")
    refuse_unless(inp.numel() == out.numel(), f"inp has {inp.numel()} elements, out {out.numel()}")
    detect_unless(not quantizes, "sums of fp8 codes are not exact")
    total = summed_over(group, inp, buffer, num_bytes, "all_reduce")
    detect_unless(out.is_contiguous(), "out is written as contiguous")
    out.copy_(total.to(inp.dtype).view(out.shape))


def fused_rms_norm(
    group: int,
    inp: Tensor,
    res_inp: Tensor,
    res_out: Tensor,
    out: Tensor,
    w: Tensor,
    eps: float,
    buffer: int,
    num_bytes: int,
    one_stage: bool,
    gemma: bool,
) -> None:
    """Writes ``res_out = sum of inp + res_inp`` and ``out = rms_norm(res_out)``."""
    size, width = _groups[group].size, inp.shape[-1]
    refuse_unless(size in (2, 4, 8), f"fused allreduce rmsnorm: unsupported world_size={size}")
    refuse_dtype("inp", inp, *HALVES)
    packs, in_row = width * inp.itemsize // 16, width * inp.itemsize
    if not (one_stage and in_row % 16 == 0 and packs <= 1024):
        refuse_unless(64 <= packs <= 2048, f"fused allreduce rmsnorm: n is too small or too large, n={width}")
        detect_unless(inp.nbytes % (16 * size) == 0, "two stages give each rank whole packs and drop a rest")
        one_stage = False
    detect_unless(not one_stage or inp.nbytes <= 128 * 1024, "one stage is tuned for 128 KiB at most")
    detect_unless(in_row % 16 == 0, "rows are read by packs of 16 bytes")
    check_dtype("w", w, inp.dtype)
    check_shape("w", w, width)
    for name, tensor in {"res_inp": res_inp, "res_out": res_out, "out": out}.items():
        check_dtype(name, tensor, inp.dtype)
        check_shape(name, tensor, *inp.shape)
        detect_unless(tensor.is_contiguous(), f"{name} is taken as contiguous")
    check_apart(out=out, inp=inp, res_inp=res_inp, res_out=res_out)
    check_apart(res_out=res_out, inp=inp, res_inp=res_inp)
    summed = summed_over(group, inp, buffer, num_bytes, "fused_allreduce_rmsnorm")
    # As the kernels do it: the sum is rounded before the residual is added.
    total = summed.to(inp.dtype).float().view(inp.shape) + res_inp.float()
    res_out.copy_(total)
    scaled = total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + eps)
    out.copy_(scaled * (w.float() + 1 if gemma else w.float()))


def summed_over(group: int, inp: Tensor, buffer: int, num_bytes: int, name: str) -> Tensor:
    """Float32, flat: the sum over the ranks' buffers in their order, after `inp` was copied to this rank's own."""
    known = _groups[group]
    refuse_dtype("inp", inp, torch.float32, *HALVES)
    refuse_unless(inp.nbytes % 16 == 0, f"custom allreduce takes whole packs of 16 bytes, not {inp.nbytes}")
    detect_unless(inp.is_contiguous(), "inp is copied as contiguous")
    detect_unless(buffer != 0, "inp itself is not registered: other ranks would read at an address of this one")
    refuse_unless(inp.nbytes <= num_bytes, "registered buffer is too small to contain the input")
    refuse_unless(buffer in known.buffers, f"buffer address {buffer} is not registered!")
    own_flags = _allocated.get(known.flags[known.rank])
    detect_unless(own_flags is not None, "the flags are not in memory that bypasses caches")
    needed = FLAG_BYTES + 2 * inp.nbytes
    detect_unless(own_flags.numel() >= needed, f"two stages write {needed} bytes behind the flags")
    ctypes.memmove(buffer, inp.data_ptr(), inp.nbytes)
    known.meeting.calls[known.rank] = (name, tuple(inp.shape), inp.dtype)
    known.meeting.barrier.wait(_WAIT_SECONDS)
    detect_unless(len(set(known.meeting.calls)) == 1, f"ranks are in different calls: {known.meeting.calls}")
    total = torch.zeros(inp.numel())
    for address in known.buffers[buffer]:
        part = bytearray(ctypes.string_at(address, inp.nbytes))
        total += torch.frombuffer(part, dtype=inp.dtype).float()
    # Nobody writes to a buffer that another still reads.
    known.meeting.barrier.wait(_WAIT_SECONDS)
    return total


def _opened(handle_ptrs: list[int], offsets: list[int]) -> list[int]:
    found = []
    for pointer, offset in zip(handle_ptrs, offsets, strict=True):
        text = ctypes.string_at(pointer, HANDLE_BYTES)
        refuse_unless(text.startswith(_MARK), "hipIpcOpenMemHandle: invalid argument")
        found.append(int.from_bytes(text[len(_MARK) : len(_MARK) + 8], "little") + offset)
    return found
