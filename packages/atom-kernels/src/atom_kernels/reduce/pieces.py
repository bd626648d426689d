"""Long sums over two ranks, piece by piece: the GPU's copy engine carries a piece while the next one is computed.

Each rank copies its pieces into slots of the other's memory, which take turns, and writes the number of a piece behind
it. Whoever uses the sum waits for that number in the kernel that adds. No multiprocessor carries anything, so products
have all of them.

A slot is used again sixteen pieces later. A sum has eight at most, and is added before the next one is sent. So what
lay in the slot belongs to the last sum but one, which the other rank added before it sent the last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS
from atom_kernels.norm import RMSNormProblem
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.protocols import PeerMemory, PieceMemory
from atom_kernels.reduce.buffers import MAX_NORMED, NUM_SLOTS
from atom_kernels.reduce.contract import AllReduceProblem
from atom_kernels.triton.launch import launch

MAX_PIECES = NUM_SLOTS // 2
# Sums go in pieces that are larger than so many times what other kernels sum: of smaller ones a host that is slow takes
# longer for the pieces than the library takes for all.
_LEAST = 3
# Pieces of a sum, or more where slots are smaller. Small ones leave less of the last one to wait for, but each
# costs the host, and its products should have tiles for all processors.
_PIECES = 3
# Products of a piece have whole tiles of rows.
_ROWS_OF_TILES = 256
# Numbers wrap before they have 32 bits, at a multiple of the slots.
_NUMBERS = 1 << 31


class PieceSum:
    """Sums over two ranks whose pieces are sent before they are added.

    Args:
        problem: the sum; its ranks are two.
        peers: they can exchange up to ``peers.max_bytes`` otherwise.
        memory: where they exchange pieces.
    """

    def __init__(self, problem: AllReduceProblem, peers: PeerMemory, memory: PieceMemory) -> None:
        row_bytes = problem.hidden_size * problem.dtype.itemsize
        self._most_rows = memory.arrived.shape[1] // row_bytes // _ROWS_OF_TILES * _ROWS_OF_TILES
        least = _LEAST * peers.max_bytes // row_bytes + 1
        self._memory, self._taken = memory, range(least, MAX_PIECES * self._most_rows + 1)

    def takes(self, num_rows: int) -> bool:
        """Whether so many rows are sent as pieces. Not in a graph, which would have the same numbers each time."""
        if num_rows not in self._taken or torch.compiler.is_compiling():
            return False
        return not (self._memory.arrived.is_cuda and torch.cuda.is_current_stream_capturing())

    def send(self, compute: Callable[[slice], torch.Tensor], num_rows: int) -> SentPieces:
        """The sum of what ``compute`` gives for runs of `num_rows` rows: a piece is sent while the next is computed."""
        memory = self._memory
        if memory.open is not None:
            memory.open.close()
        first_number, parts = (memory.num_sent + 1) % _NUMBERS, []
        piece_rows = min(-(-num_rows // (_PIECES * _ROWS_OF_TILES)) * _ROWS_OF_TILES, self._most_rows)
        for first in range(0, num_rows, piece_rows):
            parts.append(compute(slice(first, min(first + piece_rows, num_rows))).contiguous())
            memory.num_sent += 1
            number = memory.num_sent % _NUMBERS
            memory.carrier.carry(parts[-1], number % NUM_SLOTS, number)
        memory.open = sent = SentPieces(memory, parts, first_number, num_rows)
        return sent


class SentPieces:
    """Parts of a sum, which this rank has sent and the other one sends. They are added once.

    Attributes:
        is_open: they have not been added.
    """

    def __init__(self, memory: PieceMemory, parts: list[torch.Tensor], first_number: int, num_rows: int) -> None:
        self._memory, self._parts, self._first_number, self._num_rows = memory, parts, first_number, num_rows
        self.is_open, self._sum = True, torch.empty(0)

    def close(self) -> None:
        """Adds them, if nobody has."""
        if self.is_open:
            self._sum = self._empty()
            self._add(self._sum, None, None, None, None)

    def sum(self) -> torch.Tensor:
        """``all_reduce`` of the whole: ``[T, D]``, in float32 and rounded once."""
        self.close()
        return self._sum

    def add_rms_norm(
        self, residual: torch.Tensor, weight: torch.Tensor, norm: RMSNormProblem
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``all_reduce_add_rms_norm`` of the whole, while it is open: ``(normed, new residual)``, both ``[T, D]``."""
        out, total = self._empty(), self._empty()
        self._add(out, total, residual.contiguous(), weight, norm)
        return out, total

    def _empty(self) -> torch.Tensor:
        return self._parts[0].new_empty(self._num_rows, self._parts[0].shape[1])

    def _add(
        self,
        out: torch.Tensor,
        total: torch.Tensor | None,
        residual: torch.Tensor | None,
        weight: torch.Tensor | None,
        norm: RMSNormProblem | None,
    ) -> None:
        from atom_kernels.reduce.piece_kernels import add_pieces_kernel
        from atom_kernels.triton.support import dependent_launch

        memory, (num_rows, size) = self._memory, out.shape
        slots, block = memory.arrived.view(out.dtype), power_of_two(size)
        eps, offset = (0.0, 0.0) if norm is None else (norm.eps, norm.weight_offset)
        options: dict[str, Any] = {"SLOTS": NUM_SLOTS, "SLOT_ELEMENTS": slots.shape[1], "NORM": norm is not None}
        options |= {"SIZE": size, "BLOCK": block, "num_warps": min(max(block * out.itemsize // 512, 1), 16)}
        # Those that there are not are never read.
        parts = (*self._parts, *self._parts[:1] * MAX_PIECES)[:MAX_PIECES]
        where = (slots, memory.numbers, self._first_number, len(self._parts[0]))
        tensors = (residual, weight, out, total, eps, offset)
        launch(add_pieces_kernel, (num_rows,), *parts, *where, *tensors, **options, **dependent_launch())
        memory.carrier.settle()
        self.is_open, memory.open, self._parts = False, None, []


def piece_sum(problem: AllReduceProblem) -> PieceSum | None:
    """What sums long tensors piece by piece; None where the ranks exchange none."""
    peers = problem.ranks.peers
    if not isinstance(peers, PeerMemory) or peers.pieces is None:
        return None
    if problem.dtype not in FLOATS or problem.hidden_size > MAX_NORMED:
        return None
    return PieceSum(problem, peers, peers.pieces)
