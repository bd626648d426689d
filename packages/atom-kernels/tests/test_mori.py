"""MORI's adapter beside the emulator: what it passes, what it refuses, and which signatures it knows."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from atom_kernels.mori.dispatcher import MoriDispatchers
from atom_kernels.mori.library import MoriUnusableError, import_mori, installed_mori, why_not_mori
from atom_kernels.platform import Platform
from emulated_mori import as_process, emulated_mori
from thread_ranks import Group

FLOAT, D, K = torch.float32, 8, 2
AMD = Platform.rocm("gfx942", device="cpu")


@pytest.fixture(autouse=True)
def mori() -> Iterator[None]:
    with emulated_mori():
        yield


def rows_of(rank: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows that tell their rank and number, and ids of two ranks' three experts each."""
    x = torch.full((count, D), 100.0 * rank) + torch.arange(count)[:, None]
    ids = torch.tensor([[row % 6, (row * 2 + rank + 1) % 6] for row in range(count)], dtype=torch.int32).view(-1, K)
    return x, x[:, :K] + 0.5, ids


def test_rows_come_once_to_each_owner_with_all_weights_and_ids_and_go_back_summed():
    group, counts = Group(2), (5, 3)

    def work(rank: int) -> list[torch.Tensor]:
        dispatch = MoriDispatchers(as_process(group, rank), max_rows=5)(FLOAT, D, K, 3)
        x, weights, ids = rows_of(rank, counts[rank])
        taken, taken_weights, taken_ids = dispatch.dispatch(x, weights, ids)
        found = [taken.clone(), taken_weights.clone(), taken_ids.clone()]
        return [*found, dispatch.combine(taken * (rank + 1), ids)]

    everything = [torch.cat(parts) for parts in zip(*(rows_of(rank, counts[rank]) for rank in range(2)), strict=True)]
    for rank, (taken, weights, ids, _) in enumerate(results := group.run(work)):
        is_here = (everything[2] // 3 == rank).any(1)
        order = taken[:, 0].argsort()
        for found, given in zip((taken, weights, ids), everything, strict=True):
            assert torch.equal(found[order], given[is_here][everything[0][is_here][:, 0].argsort()])
    for rank, (*_, sums) in enumerate(results):
        x, _, ids = rows_of(rank, counts[rank])
        factors = torch.stack([(ids // 3 == owner).any(1) * (owner + 1.0) for owner in range(2)]).sum(0)
        assert torch.equal(sums, x * factors[:, None])


def test_what_a_call_gave_is_not_overwritten_by_the_next_and_counts_are_new():
    group = Group(2)

    def work(rank: int) -> list[torch.Tensor]:
        dispatch, sums = MoriDispatchers(as_process(group, rank), max_rows=4)(FLOAT, D, K, 3), []
        for count in (2, 4, 0, 3):
            x, weights, ids = rows_of(rank, count)
            taken, *_ = dispatch.dispatch(x, weights, ids)
            sums.append(dispatch.combine(taken.clone(), ids))
        return sums

    for rank, sums in enumerate(group.run(work)):
        assert [len(one) for one in sums] == [2, 4, 0, 3]
        for one in sums:
            x, _, ids = rows_of(rank, len(one))
            assert torch.equal(one, x * (ids // 3 == 0).any(1)[:, None] + x * (ids // 3 == 1).any(1)[:, None])


def test_mixtures_of_one_shape_share_an_operator_and_others_have_their_own():
    group = Group(1)

    def work(rank: int) -> list[Any]:
        make = MoriDispatchers(as_process(group, rank), max_rows=4)
        return [make(FLOAT, D, K, 3), make(FLOAT, D, K, 3), make(FLOAT, D, K, 2)]

    [[first, second, third]] = group.run(work)
    assert first is second
    assert third is not first


def test_more_rows_than_the_buffers_hold_are_refused():
    group = Group(1)

    def work(rank: int) -> None:
        dispatch = MoriDispatchers(as_process(group, rank), max_rows=2)(FLOAT, D, K, 6)
        with pytest.raises(RuntimeError, match="a step has 3 rows, and MORI's buffers were made for 2 of each rank"):
            dispatch.dispatch(*rows_of(0, 3))

    group.run(work)


@pytest.mark.parametrize(
    ("platform", "num_ranks", "dtype", "reason"),
    [
        (Platform.nvidia("sm_90"), 2, "bfloat16", "MORI is for AMD GPUs, this is NVIDIA sm_90"),
        (AMD, 9, "bfloat16", "MORI's kernels within a node are for 8 GPUs at most, not 9"),
        (AMD, 2, "float16", "MORI sums rows of bfloat16 and float32, not of float16"),
        (AMD, 8, "bfloat16", None),
        (AMD, 2, "float32", None),
    ],
)
def test_who_can_be_served(platform: Platform, num_ranks: int, dtype: str, reason: str | None):
    assert why_not_mori(platform, num_ranks=num_ranks, dtype=dtype) == reason


def test_one_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch):
    assert installed_mori() == "amd-mori 1.2.4"
    monkeypatch.setattr("atom_kernels.mori.library.DISTRIBUTIONS", ("no-such-mori",))
    assert installed_mori() is None
    says = "the distribution no-such-mori is not installed, see docs/amd.md"
    assert why_not_mori(AMD, num_ranks=2, dtype="bfloat16") == says


def test_one_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(importlib.import_module("mori.shmem"), "shmem_torch_process_group_init")
    with pytest.raises(MoriUnusableError, match=r"amd-mori 1\.2\.4 cannot be used: .*shmem_torch_process_group_init"):
        import_mori()


def with_another_order(self: Any, input: Any, weights: Any, indices: Any, scales: Any) -> None: ...
def with_one_more(self: Any, input: Any, weights: Any, scales: Any, indices: Any, layout: Any) -> None: ...
def with_one_less(self: Any, input: Any, weights: Any) -> None: ...


@pytest.mark.parametrize(
    ("method", "function"),
    [("dispatch", with_another_order), ("dispatch", with_one_more), ("combine", with_one_less)],
)
def test_another_signature_is_refused_by_name(monkeypatch: pytest.MonkeyPatch, method: str, function: Any):
    monkeypatch.setattr(importlib.import_module("mori.ops").EpDispatchCombineOp, method, function)
    with pytest.raises(MoriUnusableError, match=f"EpDispatchCombineOp.{method} takes self, input, .*; we know it with"):
        import_mori()


def test_another_config_is_refused_by_the_fields(monkeypatch: pytest.MonkeyPatch):
    fields = [("rank", int), ("world_size", int), ("new", int)]
    other = dataclasses.make_dataclass("Other", fields)
    monkeypatch.setattr(importlib.import_module("mori.ops"), "EpDispatchCombineConfig", other)
    with pytest.raises(MoriUnusableError, match="lacks data_type, hidden_dim, .* of what we pass, and needs new"):
        import_mori()
