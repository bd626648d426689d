"""What the tuner tries for linears of few rows."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.formats import Integers, Plain, WeightFormat
from atom_kernels.linear import LinearProblem
from atom_kernels.linear.triton.backend import SKINNY_BACKEND
from atom_kernels.linear.triton.choice import configs
from atom_kernels.linear.triton.tuning import LINEAR_TUNING, candidates, is_normed
from atom_kernels.platform import Facts, platform_from_facts

PROBLEMS = LINEAR_TUNING.problems()


@pytest.mark.parametrize("num_rows", LINEAR_TUNING.rows)
@pytest.mark.parametrize("name", PROBLEMS)
def test_candidates_fill_a_large_gpu_and_hold_no_more_rows_than_there_are(name: str, num_rows: int) -> None:
    problem = PROBLEMS[name]
    found = candidates(problem, num_rows)
    assert len(found) == len(set(found)) > 5
    for config in found:
        programs = -(-num_rows // config.block_m) * -(-problem.out_features // config.block_n) * config.split_k
        assert programs >= 90
        assert config.block_m <= max(num_rows, 16)


def test_rows_are_normed_apart_where_every_program_would_norm_many() -> None:
    problem = LinearProblem(1024, 4096, torch.bfloat16)
    assert is_normed(problem)
    assert {config.norm_apart for config in candidates(problem, 1)} == {False}
    assert {config.norm_apart for config in candidates(problem, 32)} == {False, True}
    assert {config.norm_apart for config in candidates(problem, 128)} == {True}


@pytest.mark.parametrize("weight_format", [None, Integers(4, 128)], ids=["plain", "int4"])
def test_rows_a_little_above_a_block_are_tried_in_the_next_higher_one(weight_format: WeightFormat | None) -> None:
    problem = LinearProblem(4096, 6144, torch.bfloat16, weight_format=weight_format or Plain(torch.bfloat16))
    for num_rows, highest in ((33, 64), (65, 128)):
        assert max(config.block_m for config in candidates(problem, num_rows)) == highest


def test_a_projection_back_adds_the_residual_instead_of_a_norm() -> None:
    problem = LinearProblem(4096, 1024, torch.bfloat16)
    assert not is_normed(problem)
    assert {config.norm_apart for config in candidates(problem, 32)} == {False}


def test_cublas_serves_all_where_it_was_always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, platform = LinearProblem(1024, 4096, torch.bfloat16), platform_from_facts(Facts())
    assert SKINNY_BACKEND.supports(problem, platform) is None
    monkeypatch.setattr(configs, "tuned_rows", lambda *_: ())
    assert "cuBLAS is faster for every number of rows" in (SKINNY_BACKEND.supports(problem, platform) or "")
