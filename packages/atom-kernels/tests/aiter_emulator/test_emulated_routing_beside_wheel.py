"""Routing and the sizes of metadata beside AITER's own Python, of the wheel on PyPI."""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace

import pytest
import torch

from aiter_wheel import AiterWheel, aiter_wheel

pytestmark = pytest.mark.network

ROWS, EXPERTS, TOPK = 7, 32, 4


@pytest.fixture
def wheel() -> AiterWheel:
    return aiter_wheel()


def by_id(weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The weight of each expert: the order of the chosen is not promised."""
    return torch.zeros(len(ids), EXPERTS).scatter(1, ids.long(), weights)


@pytest.mark.parametrize("renorm", [True, False])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid", "biased"])
def test_groups_give_the_same_choice(wheel: AiterWheel, pypi_aiter: ModuleType, kind: str, renorm: bool):
    names = "biased_grouped_topk_torch", "grouped_topk_torch"
    real = wheel.functions("aiter/ops/topk.py", *names, dtypes=pypi_aiter.dtypes)
    gating, bias = torch.randn(ROWS, EXPERTS), torch.rand(EXPERTS)
    weights, ids = torch.empty(ROWS, TOPK), torch.empty(ROWS, TOPK, dtype=torch.int32)
    if kind == "biased":
        expected = real["biased_grouped_topk_torch"](gating, bias, TOPK, renorm, 8, 3)
        pypi_aiter.biased_grouped_topk(gating, bias, weights, ids, 8, 3, renorm)
    else:
        expected = real["grouped_topk_torch"](gating, TOPK, renorm, 8, 3, kind)
        pypi_aiter.grouped_topk(gating, weights, ids, 8, 3, renorm, kind == "softmax")
    torch.testing.assert_close(by_id(weights, ids), by_id(*expected))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("heads", [16, 32, 128])
def test_metadata_has_the_same_sizes(
    wheel: AiterWheel, pypi_aiter: ModuleType, monkeypatch: pytest.MonkeyPatch, heads: int, fast: bool
):
    known = {"dtypes": pypi_aiter.dtypes, "math": math}
    name = "get_mla_metadata_info_v1"
    real = wheel.functions("aiter/ops/attention.py", name, **known)[name]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=304))
    for batch, queries in ((1, 1), (3, 2), (500, 4)):
        for kv in (torch.bfloat16, pypi_aiter.dtypes.fp8):
            given = (batch, queries, heads, torch.bfloat16, kv, 0, fast)
            assert pypi_aiter.get_mla_metadata_info_v1(*given) == real(*given)
