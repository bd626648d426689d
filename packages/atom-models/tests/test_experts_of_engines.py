"""Experts over engines that compute other requests: each engine gets what all experts make of its own rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from atom_kernels.mori.dispatcher import MoriDispatchers
from atom_kernels.platform import detect_platform
from atom_models import BuildContext
from atom_models.groups import Groups
from atom_models.layers import MoE, MoEConfig, SharedExpertsConfig
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.layers.mixture.dispatched_rows import dispatch_rows
from atom_models.layers.mixture.exchange import rows_of_engines, take_part
from atom_models.layers.mixture.exchange_rule import ExchangeRule
from atom_models.layers.mixture.placement import ExpertPlacement
from atom_models.requirements.sharing import OneOf, groups_of, spread_experts
from emulated_mori import as_process, emulated_mori
from thread_ranks import Group

E, K, D, I = 6, 2, 32, 16  # noqa: E741
EXCHANGES = ("gather", "all-to-all", "mori")
# MORI takes an engine for one rank.
EXCHANGES_OF_WIDTHS = [(1, exchange) for exchange in EXCHANGES] + [(2, "gather"), (2, "all-to-all")]


@pytest.fixture(autouse=True, scope="module")
def mori() -> Iterator[None]:
    with emulated_mori():
        yield


class Engines:
    """Ranks, threads of this process, of `size` engines of `width` ranks each."""

    def __init__(self, size: int, width: int) -> None:
        self.width, self.everyone = width, Group(size * width)
        self._tensor, self._data = [Group(width) for _ in range(size)], [Group(size) for _ in range(width)]

    @property
    def rows_given(self) -> list[int]:
        """Rows that each engine's first rank has given by all-to-all: how many they are, rows, choices and results."""
        return self._data[0].rows_given

    def groups(self, number: int) -> Groups:
        engine, rank = divmod(number, self.width)
        tensor, data = self._tensor[engine].as_rank(rank), self._data[rank].as_rank(engine)
        return Groups(tensor, expert=self.everyone.as_rank(number), data=data)

    def run(
        self, rows: Sequence[torch.Tensor], exchange: str, *, then: ExpertPlacement | None = None, **context: Any
    ) -> list[torch.Tensor]:
        """What each rank has of a mixture's output for the rows of its engine, from the same weights everywhere.

        Where experts move `then`, the output is that of a further step.
        """

        def run(number: int) -> torch.Tensor:
            groups, own, given = self.groups(number), rows[number // self.width], dict(context)
            if exchange == "mori":
                ranks = as_process(self._data[0], number)
                given["row_dispatchers"] = MoriDispatchers(ranks, max(map(len, rows)))
            layer = make_mixture(BuildContext(groups=groups, expert_exchange=exchange, **given))
            found = step(layer, own)
            if then is None:
                return found
            layer.experts.move(then)
            return step(layer, own)

        def step(layer: MoE, own: torch.Tensor) -> torch.Tensor:
            with rows_of_engines([len(one) for one in rows]):
                if len(own):
                    return layer(own)
                take_part(layer)
                return own

        return self.everyone.run(run)


def make_mixture(context: BuildContext) -> MoE:
    config = MoEConfig(E, K, D, I, shared_experts=SharedExpertsConfig(I, "shared_expert", gate="shared_expert_gate"))
    layer = MoE(config, context, prefix="m")
    for part in loadable(layer):
        for name, expected in expected_weights(part).items():
            generator = torch.Generator().manual_seed(sum(map(ord, re.sub(r"[^0-9a-z]", "", name))))
            whole = torch.randn(expected.shape, generator=generator) / 4
            part.load_shard(name, whole)
        part.finish()
    return layer


def make_rows(counts: Sequence[int]) -> list[torch.Tensor]:
    return [torch.randn(count, D, generator=torch.Generator().manual_seed(count)) for count in counts]


def assert_gives_what_one_rank_gives(engines: Engines, rows: Sequence[torch.Tensor], exchange: str, **context: Any):
    whole = make_mixture(BuildContext())
    for number, found in enumerate(engines.run(rows, exchange, **context)):
        torch.testing.assert_close(found, whole(rows[number // engines.width]), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("width", "exchange"), EXCHANGES_OF_WIDTHS)
@pytest.mark.parametrize("counts", [(3, 3), (5, 2), (0, 4), (7, 0), (1, 0, 9)])
def test_each_engine_gets_what_one_rank_computes_of_its_rows(width, counts, exchange):
    assert_gives_what_one_rank_gives(Engines(len(counts), width), make_rows(counts), exchange)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_wherever_experts_and_their_copies_are_all_exchanges_give_what_one_rank_gives(data):
    size, width = data.draw(st.sampled_from([(2, 1), (2, 2), (3, 1), (4, 1)]))
    owners = data.draw(st.lists(st.sets(st.integers(0, size * width - 1), min_size=1), min_size=E, max_size=E))
    held = [tuple(expert for expert in range(E) if rank in owners[expert]) or (0,) for rank in range(size * width)]
    rows = make_rows(data.draw(st.lists(st.integers(0, 6), min_size=size, max_size=size).filter(any)))
    for exchange in EXCHANGES if width == 1 else EXCHANGES[:2]:
        assert_gives_what_one_rank_gives(
            Engines(size, width), rows, exchange, place_experts=lambda *_: ExpertPlacement(tuple(held))
        )


@pytest.mark.parametrize("exchange", EXCHANGES)
@pytest.mark.parametrize("size", [2, 3])
def test_experts_that_move_between_two_steps_change_no_row(size, exchange):
    before = ExpertPlacement.contiguous(E, size)
    after = ExpertPlacement(tuple(tuple(range(rank, E, size)) for rank in range(size)))
    rows = make_rows((5, 2, 4)[:size])
    assert_gives_what_one_rank_gives(Engines(size, 1), rows, exchange, place_experts=lambda *_: before, then=after)


def test_a_row_goes_once_to_each_rank_that_owns_one_of_its_experts_and_to_no_other():
    rows, engines = make_rows((5, 2, 0)), Engines(3, 1)
    owners = (0, 0, 1, 1, 1, 1)
    placement = ExpertPlacement(((0, 1), (2, 3, 4, 5), (0,)))
    ids = [make_mixture(BuildContext()).router(own)[1].tolist() for own in rows]
    invariant = replace(detect_platform(), batch_invariant=True)  # nobody's turn is the copy of the last rank
    assert_gives_what_one_rank_gives(
        engines, rows, "all-to-all", place_experts=lambda *_: placement, platform=invariant
    )
    sent = [sum(len({owners[expert] for expert in of_row}) for of_row in of_engine) for of_engine in ids]
    taken = [sum(rank in {owners[e] for e in of_row} for own in ids for of_row in own) for rank in range(3)]
    assert taken[2] == 0 < min(taken[:2])
    # Numbers of rows, one for each rank; rows and what they chose; and what comes back.
    assert engines.rows_given == [3 + 2 * out + back for out, back in zip(sent, taken, strict=True)]


def test_parts_of_a_row_are_added_in_float32_and_rounded_once():
    def add(rank: int) -> torch.Tensor:
        # 256 + 1 rounds to 256 in bfloat16, twice; their sum is 258.
        x, slots = torch.tensor([[(256.0, 1.0, 1.0)[rank]]], dtype=torch.bfloat16), [_Held(), _Held(), _Held()]
        one = torch.ones(1, 1)
        return dispatch_rows(
            group.as_rank(rank), lambda found, *_: torch.full_like(found, float(x)), slots, x, one, one.int()
        )

    group = Group(3)
    assert [found.item() for found in group.run(add)] == [258.0] * 3


def test_experts_to_which_no_row_comes_are_not_run():
    def run(rank: int) -> torch.Tensor:
        x, one = torch.ones(1, 1), torch.ones(1, 1)
        return dispatch_rows(group.as_rank(rank), double, [_Held(), _Held(0)], x, one, one.int())

    def double(x: torch.Tensor, *_: Any) -> torch.Tensor:
        assert len(x) == 2
        return 2 * x

    group = Group(2)
    assert [found.item() for found in group.run(run)] == [2.0, 2.0]


class _Held:
    """Every expert is in the first slot, if there is one."""

    def __init__(self, num_slots: int = 1) -> None:
        self.num_slots = num_slots

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(ids)


RULE = ExchangeRule("auto", num_ranks=8, top_k=2, row_bytes=16384, device="cpu")


@pytest.mark.parametrize(
    ("changes", "counts", "expected"),
    [
        ({}, [512] * 8, True),
        ({}, [1] * 8, False),  # what is saved does not pay for a further exchange
        ({"top_k": 200}, [512] * 8, False),  # every rank owns an expert of every row
        ({"top_k": 200}, [512] + [1] * 7, True),  # a gather would pad seven engines' rows
        ({"device": "cuda"}, [8] * 8, False),
        ({"device": "cuda"}, [512] * 8, True),
        ({}, [8] * 8, True),
        ({"asked": "gather"}, [512] * 8, False),
        ({"asked": "all-to-all"}, [1] * 8, True),
    ],
    ids=str,
)
def test_rows_are_dispatched_where_that_saves_enough_bytes(changes, counts, expected):
    assert replace(RULE, **changes).dispatches(counts) is expected


def test_a_rule_knows_its_mixture():
    context = BuildContext(groups=Engines(2, 2).groups(0), dtype=torch.bfloat16)
    found = ExchangeRule.of(MoEConfig(E, K, D, I), context)
    # Rows of bfloat16 there and back, and a weight and a slot for each expert.
    assert found == ExchangeRule("auto", num_ranks=4, top_k=K, row_bytes=4 * D + 8 * K, device="cpu")


def test_an_engine_whose_rows_are_not_those_that_were_agreed_says_so():
    layer = make_mixture(BuildContext(groups=spread_experts(2)))
    with rows_of_engines([3, 1]), pytest.raises(RuntimeError, match=r"agreed on \[3, 1\] rows, and this one has 2"):
        layer(torch.zeros(2, D))


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_mixture_that_is_told_of_no_step_computes_as_many_rows_as_engines_and_exchanges_none(exchange):
    seen = []
    layer = make_mixture(BuildContext(groups=spread_experts(3), expert_exchange=exchange))
    apply = layer.experts._apply
    layer.experts._apply = lambda x, *rest: seen.append(len(x)) or apply(x, *rest)
    assert layer(torch.zeros(2, D)).shape == (2, D)
    assert seen == [6]


def test_experts_are_spread_over_all_ranks_of_all_engines():
    groups = groups_of(spread_experts(4), OneOf(1, 2))
    assert groups.expert is not None
    assert (groups.expert.rank, groups.expert.size, groups.data.size) == (1, 8, 4)
    of_engine = groups.of_engine().expert
    assert of_engine is not None
    assert (of_engine.rank, of_engine.size) == (1, 2)
    with pytest.raises(ValueError, match="experts are spread over 2 ranks, and 4 share the layer"):
        Groups(OneOf(0, 2), expert=OneOf(0, 2), data=OneOf(0, 2))
    with pytest.raises(ValueError, match="experts are spread over 0 ranks, and 2 share"):
        Groups(data=OneOf(0, 2))
