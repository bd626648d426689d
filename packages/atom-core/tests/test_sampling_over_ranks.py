"""Ranks with a run of the vocabulary each draw what one rank draws, and gather whole logits only where they must."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from atom_core.messages import NOT_FINITE, NewRequest, SamplingParams, ScheduledRequest, SchedulerOutput
from atom_core.worker.graphs.shapes import GraphShape, GraphShapes
from atom_core.worker.graphs.step_graphs import StepGraphs
from atom_core.worker.model.engine_draft import EngineDraft
from atom_core.worker.requests.device_tables import DeviceTables
from atom_core.worker.requests.host_tables import HostTables
from atom_core.worker.requests.states import RequestStates
from atom_core.worker.sampling.sampler import Drawing, Sampler
from atom_core.worker.steps.batch import StepRows, build_input
from atom_core.worker.steps.device_inputs import DeviceInputs
from atom_models.layers.shared_vocabulary import UNSHARED_VOCABULARY, SharedVocabulary
from repeated_work import Repeated
from thread_ranks import Group

NAN, INF = float("nan"), float("inf")
GREEDY, SEEDED = SamplingParams(temperature=0.0), SamplingParams(temperature=0.9, seed=4)
# Two and four ranks; runs that come out even, a last one that is shorter, and one with nothing but padding.
SHARES = [(2, 16), (4, 16), (2, 11), (4, 10), (4, 9)]
MEANINGLESS = 1e6


def columns_of(logits_nV: torch.Tensor, vocabulary: SharedVocabulary) -> torch.Tensor:
    """What a rank's head gives: its run, and something behind the last id."""
    if not vocabulary.is_shared:
        return logits_nV.clone()
    padded = logits_nV.new_full((len(logits_nV), vocabulary.width * vocabulary.ranks.size), MEANINGLESS)
    padded[:, : logits_nV.shape[1]] = logits_nV
    return padded.chunk(vocabulary.ranks.size, dim=1)[vocabulary.ranks.rank].clone()


def sampled(
    logits_nV: torch.Tensor,
    vocabulary: SharedVocabulary,
    params: Sequence[SamplingParams],
    *,
    drafts: tuple[int, ...] = (),
    masks: Any = None,
) -> tuple[list[int], Any]:
    """What a rank draws for requests that sample at `drafts` and behind them, and the histories afterwards."""
    tables = HostTables(len(params), 16, block_size=16, num_groups=1)
    states = RequestStates(len(params), tables, num_groups=1, vocab_size=logits_nV.shape[1], device="cpu")
    new = [NewRequest(str(number), [1], 1, each, (), 0) for number, each in enumerate(params)]
    count = len(drafts) + 1
    step = SchedulerOutput(
        0, [ScheduledRequest(one.request_id, 0, count, [[0]], count, drafts) for one in new], new, []
    )
    states.update(step)
    batch = build_input(StepRows.of(step, states.slots), tables, 16)
    found = Sampler(states, vocabulary).sample_step(step, batch, columns_of(logits_nV, vocabulary), masks)
    return found.token_ids.tolist(), (states.history.tolist(), states.num_rejected.tolist())


def drawn_by(
    size: int, logits_nV: torch.Tensor, params: Sequence[SamplingParams], **options: Any
) -> tuple[list[int], list[int]]:
    """The tokens, which are one rank's on all of `size` ranks, and the bytes that each of these gathers."""
    group, vocab_size = Group(size), logits_nV.shape[1]

    def run(rank: int) -> Any:
        return sampled(logits_nV, SharedVocabulary(group.as_rank(rank), vocab_size), params, **options)

    expected = sampled(logits_nV, UNSHARED_VOCABULARY, params, **options)
    assert group.run(run) == [expected] * size
    return expected[0], group.gathered_bytes


def random_logits(num_rows: int, vocab_size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("size", "vocab_size"), SHARES)
def test_greedy_rows_take_one_ranks_tokens_and_gather_eight_bytes_each(size: int, vocab_size: int):
    tokens, gathered = drawn_by(size, random_logits(40, vocab_size), [GREEDY] * 40)
    assert len(set(tokens)) > 6
    assert gathered == [8 * 40] * size


@pytest.mark.parametrize(("size", "vocab_size"), SHARES)
def test_of_equal_tokens_of_several_ranks_the_lowest_id_wins(size: int, vocab_size: int):
    """Rounded so that most rows have several best tokens, with infinities and NaN among them."""
    logits = random_logits(200, vocab_size, seed=1).round().clamp(-1, 1)
    logits[::7, ::3], logits[1::7, 1::3], logits[2::7, 2::2] = NAN, -INF, NAN
    drawn_by(size, logits, [GREEDY] * 200)
    assert drawn_by(size, torch.zeros(1, vocab_size), [GREEDY])[0] == [0]


@pytest.mark.parametrize(("size", "vocab_size"), SHARES)
def test_rows_without_a_finite_best_token_end_on_all_ranks(size: int, vocab_size: int):
    logits = random_logits(5, vocab_size)
    logits[0], logits[1], logits[2, vocab_size - 1] = NAN, -INF, INF
    logits[3, : vocab_size - 1] = NAN
    tokens, _ = drawn_by(size, logits, [GREEDY] * 5)
    assert tokens[:4] == [NOT_FINITE] * 3 + [vocab_size - 1]
    assert tokens[4] >= 0


@pytest.mark.parametrize("size", [2, 4])
def test_drafts_of_greedy_rows_are_verified_from_pairs_too(size: int):
    logits = random_logits(24, 10, seed=2)
    logits[:, 7] += 2.5
    tokens, gathered = drawn_by(size, logits, [GREEDY] * 8, drafts=(7, 7))
    assert -1 in tokens
    assert [7, 7] in [tokens[first : first + 2] for first in range(0, 24, 3)]
    assert gathered == [8 * 24] * size


ASKING_FOR_MORE = {
    "seeded": SEEDED,
    "top-k": SamplingParams(temperature=0.9, seed=4, top_k=3),
    "log-probabilities": SamplingParams(temperature=0.0, logprobs=2),
    "penalties": SamplingParams(temperature=0.0, repetition_penalty=1.5),
    "a bias": SamplingParams(temperature=0.0, logit_bias={8: 5.0}),
}


@pytest.mark.parametrize("what", ASKING_FOR_MORE)
def test_one_row_that_asks_for_more_has_all_ranks_gather_the_logits_of_all(what: str):
    tokens, gathered = drawn_by(4, random_logits(8, 10, seed=3), [GREEDY, ASKING_FOR_MORE[what]] * 4)
    assert gathered == [4 * 3 * 8] * 4
    assert what != "a bias" or tokens[1::2] == [8] * 4


def test_a_grammar_of_a_greedy_row_sees_whole_logits():
    masks = {"0": np.array([1 << 9], dtype=np.int32)}
    tokens, gathered = drawn_by(4, random_logits(2, 10), [GREEDY] * 2, masks=masks)
    assert tokens[0] == 9
    assert gathered == [4 * 3 * 2] * 4


def test_a_greedy_row_with_filters_still_takes_the_best_token_from_pairs():
    _, gathered = drawn_by(2, random_logits(6, 10), [SamplingParams(temperature=0.0, top_k=5, top_p=0.5)] * 6)
    assert gathered == [8 * 6] * 2


def test_one_rank_has_no_draw_of_its_own_for_greedy_rows():
    states = RequestStates(1, HostTables(1, 16, block_size=16, num_groups=1), num_groups=1, vocab_size=8, device="cpu")
    assert Sampler(states).drawings == (Drawing.ALL, Drawing.FILTERED)
    assert Sampler(states).drawing_of(np.array([0])) is Drawing.ALL


def test_a_captured_step_gathers_pairs_where_all_of_its_rows_are_greedy():
    """Every way to draw is captured, and the rows choose among them; those of padding, here all, are greedy."""
    logits, group = random_logits(4, 10), Group(4)

    def make(rank: int) -> StepGraphs:
        vocabulary = SharedVocabulary(group.as_rank(rank), 10)
        tables = DeviceTables(4, 64, block_size=16, num_groups=1, device="cpu")
        sampler = Sampler(RequestStates(4, tables, num_groups=1, vocab_size=10, device="cpu"), vocabulary)
        return StepGraphs(
            DeviceInputs(tables, block_size=16, max_num_seqs=5, max_num_tokens=32),
            run_model=lambda batch: (columns_of(logits, vocabulary),),
            draw=lambda columns, batch, drawing: (
                sampler.draw(columns, batch.sample_slots, batch.sample_positions, drawing=drawing),
            ),
            drawings=sampler.drawings,
            shapes=GraphShapes((4,)),
            max_seq_len=64,
            capture=Repeated,
        )

    # Not by the threads: the first who prepares an operator makes it known to torch.
    of_ranks = [make(rank) for rank in range(4)]

    def run(rank: int) -> list[Any]:
        graphs = of_ranks[rank]
        assert graphs.capture_next()
        shape = GraphShape(4, 4)
        found = []
        for drawing in Drawing:
            graphs.replay_model(shape)
            before = group.gathered_bytes[rank]
            found += [graphs.replay_sampler(shape, drawing).tolist(), group.gathered_bytes[rank] - before]
        return found

    best = logits.argmax(dim=-1).tolist()
    assert group.run(run) == [[best, 8 * 4, best, 4 * 3 * 4, best, 4 * 3 * 4]] * 4


class Guessing:
    """A draft model whose logits are its features' columns."""

    vocab_size = 10

    def __init__(self, vocabulary: SharedVocabulary, target_ids: torch.Tensor | None) -> None:
        self.target_ids, self._vocabulary = target_ids, vocabulary

    def compute_logits(self, features: torch.Tensor) -> torch.Tensor:
        return columns_of(features, self._vocabulary)


@pytest.mark.parametrize("target_ids", [None, torch.arange(10) * 3])
def test_ranks_guess_a_draft_from_pairs(target_ids: torch.Tensor | None):
    logits, group = random_logits(30, 10), Group(4)

    def guess(rank: int) -> torch.Tensor:
        ranks = group.as_rank(rank)
        model: Any = Guessing(SharedVocabulary(ranks, 10), target_ids)
        return EngineDraft(model, {}, ranks=ranks).guess(logits)

    best = logits.argmax(dim=-1)
    for found in group.run(guess):
        assert torch.equal(found, best if target_ids is None else target_ids[best])
    assert group.gathered_bytes == [8 * 30] * 4
