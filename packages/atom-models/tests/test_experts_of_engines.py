"""Experts over engines that compute other requests: each engine gets what all experts make of its own rows."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
import torch

from atom_models import BuildContext
from atom_models.groups import Groups
from atom_models.layers import MoE, MoEConfig, SharedExpertsConfig
from atom_models.layers.loadable import expected_weights, loadable
from atom_models.layers.mixture.exchange import rows_of_engines, take_part
from atom_models.requirements.sharing import OneOf, groups_of, spread_experts
from thread_ranks import Group

E, K, D, I = 6, 2, 32, 16  # noqa: E741


class Engines:
    """Ranks, threads of this process, of `size` engines of `width` ranks each."""

    def __init__(self, size: int, width: int) -> None:
        self.width, self.everyone = width, Group(size * width)
        self._tensor, self._data = [Group(width) for _ in range(size)], [Group(size) for _ in range(width)]

    def groups(self, number: int) -> Groups:
        engine, rank = divmod(number, self.width)
        tensor, data = self._tensor[engine].as_rank(rank), self._data[rank].as_rank(engine)
        return Groups(tensor, expert=self.everyone.as_rank(number), data=data)

    def run(self, rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What each rank has of a mixture's output for the rows of its engine, from the same weights everywhere."""

        def run(number: int) -> torch.Tensor:
            layer, own = make_mixture(BuildContext(groups=self.groups(number))), rows[number // self.width]
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


@pytest.mark.parametrize("counts", [(3, 3), (5, 2), (0, 4), (7, 0)])
@pytest.mark.parametrize("width", [1, 2])
def test_each_engine_gets_what_one_rank_computes_of_its_rows(width, counts):
    rows = [torch.randn(count, D, generator=torch.Generator().manual_seed(count)) for count in counts]
    whole = make_mixture(BuildContext())
    for number, found in enumerate(Engines(2, width).run(rows)):
        own = rows[number // width]
        torch.testing.assert_close(found, whole(own), atol=1e-5, rtol=1e-4)


def test_an_engine_whose_rows_are_not_those_that_were_agreed_says_so():
    layer = make_mixture(BuildContext(groups=spread_experts(2)))
    with rows_of_engines([3, 1]), pytest.raises(RuntimeError, match=r"agreed on \[3, 1\] rows, and this one has 2"):
        layer(torch.zeros(2, D))


def test_a_mixture_that_is_told_of_no_step_computes_as_many_rows_as_engines_and_exchanges_none():
    seen = []
    layer = make_mixture(BuildContext(groups=spread_experts(3)))
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
