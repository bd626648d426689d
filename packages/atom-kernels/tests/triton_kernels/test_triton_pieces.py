"""Long sums over two ranks, piece by piece, by kernels that Triton's interpreter runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom_kernels.norm import RMSNormProblem, add_rms_norm
from atom_kernels.protocols import NoPeers, PeerMemory
from atom_kernels.reduce import AllReduceProblem, piece_sum
from atom_kernels.settings import triton_interpret
from forked_ranks import SharingRank, run_ranks, shared_buffers, shared_tensor, two_ranks_over

pytestmark = [
    pytest.mark.skipif(not triton_interpret(), reason="ranks on GPUs are in tests/gpu of atom-core"),
    # Python 3.12 warns that another thread of a process that forks may hold a lock; ranks take none of this process.
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

# Rows of 96 bytes, 170 of which other kernels sum, and the library up to three times as many; a piece has 512 at most.
MAX_BYTES, HIDDEN = 16 << 10, 24
NORM = RMSNormProblem(HIDDEN, torch.float32, 1e-5, 1.0)


def two_ranks() -> list[PeerMemory]:
    """Both of them in this process: each sends before one of them adds."""
    return two_ranks_over(shared_buffers(2, MAX_BYTES), MAX_BYTES)


def sums_of(peers: list[PeerMemory]):
    return [piece_sum(AllReduceProblem(HIDDEN, torch.float32, SharingRank(one))) for one in peers]


def test_pieces_have_whole_tiles_of_rows_and_fit_their_slots():
    x = torch.randn(2, 1500, HIDDEN)
    peers = two_ranks()
    for num_rows, numbers in ((800, 4), (1500, 4 + 6)):
        sent = [one.send(x[rank].__getitem__, num_rows) for rank, one in enumerate(sums_of(peers))]
        assert max(peers[0].pieces.numbers) == numbers
        for one in sent:
            assert torch.equal(one.sum(), x[0, :num_rows] + x[1, :num_rows])


@pytest.mark.parametrize("num_rows", [171, 600, 1024, 2048])
def test_both_ranks_have_the_bits_of_the_sum(num_rows):
    x = torch.randn(2, num_rows, HIDDEN)
    sent = [one.send((3 * x[rank]).__getitem__, num_rows) for rank, one in enumerate(sums_of(two_ranks()))]
    for one in sent:
        assert torch.equal(one.sum(), 3 * x[0] + 3 * x[1])


def test_a_piece_is_sent_before_the_next_one_is_computed():
    peers, seen = two_ranks(), []
    arrived = peers[1].pieces

    def compute(run: slice) -> torch.Tensor:
        seen.append(arrived.numbers.tolist().count(0))
        return torch.randn(700, HIDDEN)[run]

    sums_of(peers)[0].send(compute, 700)
    assert seen == [16, 15, 14]


def test_a_sum_with_its_norm_is_what_both_are_apart():
    x, residual, weight = torch.randn(2, 300, HIDDEN), torch.randn(300, HIDDEN), torch.randn(HIDDEN)
    sent = [one.send(x[rank].__getitem__, len(x[rank])) for rank, one in enumerate(sums_of(two_ranks()))]
    wanted, total = add_rms_norm(x[0] + x[1], residual, weight, NORM.eps, weight_offset=1.0)
    for one in sent:
        got = one.add_rms_norm(residual, weight, NORM)
        assert not one.is_open
        assert torch.equal(got[1], total)
        torch.testing.assert_close(got[0], wanted)


def test_sums_follow_each_other_over_the_same_slots_as_ranks_come():
    rows = (700, 180, 2048, 300, 1025, 513)
    wanted = [torch.randn(2, count, HIDDEN, generator=torch.Generator().manual_seed(count)) for count in rows]
    results = shared_tensor(2 * len(rows))

    def work(rank: SharingRank) -> None:
        pieces = piece_sum(AllReduceProblem(HIDDEN, torch.float32, rank))
        for call, x in enumerate(wanted):
            got = pieces.send(x[rank.rank].__getitem__, len(x[rank.rank])).sum()
            results[2 * call + rank.rank] = torch.equal(got, x[0] + x[1])

    run_ranks(2, MAX_BYTES, work)
    assert results.tolist() == [1] * len(results)


def test_what_was_sent_is_added_before_the_next_sum_is_sent():
    x, results = torch.randn(3, 2, 2048, HIDDEN), shared_tensor(6)

    def work(rank: SharingRank) -> None:
        pieces = piece_sum(AllReduceProblem(HIDDEN, torch.float32, rank))
        sent = [pieces.send(given[rank.rank].__getitem__, len(given[rank.rank])) for given in x]
        for at, one in enumerate(sent):
            results[3 * rank.rank + at] = torch.equal(one.sum(), x[at, 0] + x[at, 1])

    run_ranks(2, MAX_BYTES, work)
    assert results.tolist() == [1] * 6


def test_numbers_start_again_before_they_need_more_than_32_bits():
    peers, x = two_ranks(), torch.randn(2, 700, HIDDEN)
    for one in peers:
        one.pieces.num_sent = (1 << 31) - 2
    sent = [one.send(x[rank].__getitem__, len(x[rank])) for rank, one in enumerate(sums_of(peers))]
    assert torch.equal(sent[0].sum(), x[0] + x[1])
    assert sorted(peers[0].pieces.numbers.tolist())[-3:] == [0, 1, (1 << 31) - 1]


def test_rows_that_other_kernels_sum_or_that_no_slot_holds_are_not_taken():
    sums = sums_of(two_ranks())[0]
    assert [sums.takes(count) for count in (1, 512, 513, 2048, 2049)] == [False, False, True, True, False]


def test_ranks_without_slots_send_no_pieces():
    peers = two_ranks()[0]
    assert piece_sum(AllReduceProblem(HIDDEN, torch.float32, SharingRank(replace(peers, pieces=None)))) is None
    assert piece_sum(AllReduceProblem(HIDDEN, torch.float64, SharingRank(peers))) is None
    assert piece_sum(AllReduceProblem(1 << 15, torch.float32, SharingRank(peers))) is None
    apart = SharingRank(peers)
    apart.peers = NoPeers("GPU 0 cannot reach GPU 1")
    assert piece_sum(AllReduceProblem(HIDDEN, torch.float32, apart)) is None
