"""The tables that AITER's kernels want beside ours are contiguous, in their dtype, and made once."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.aiter.tables import cos_sin_tables, no_rotation, rotary_halves, rotary_rows, unit_scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_of_any_table_lie_in_memory_one_after_the_other(dtype: torch.dtype):
    table = torch.randn(8, 12, generator=torch.Generator().manual_seed(0)).t()  # 12 positions of 8 numbers
    cos, sin = rotary_halves(table, dtype)
    assert torch.equal(rotary_rows(table, dtype), table.to(dtype))
    assert torch.equal(torch.cat([cos, sin], dim=-1), table.to(dtype))
    for half, wide in zip((cos, sin), cos_sin_tables(table, dtype), strict=True):
        assert torch.equal(wide, half.view(12, 1, 1, 4))
        assert wide.is_contiguous()
        assert half.is_contiguous()
    assert rotary_rows(table, dtype).is_contiguous()


def test_a_table_is_made_once_in_each_dtype():
    table = torch.randn(4, 8)
    assert rotary_rows(table, torch.bfloat16) is rotary_rows(table, torch.bfloat16)
    assert rotary_halves(table, torch.bfloat16)[0] is rotary_halves(table, torch.bfloat16)[0]
    assert rotary_rows(table, torch.float16).dtype == torch.float16
    assert rotary_halves(table, torch.float16)[1].dtype == torch.float16


def test_what_changes_nothing_is_one_and_no_turn():
    device = torch.device("cpu")
    assert unit_scale(device).tolist() == [1.0]
    assert [part.tolist() for part in no_rotation(3, device)] == [[[1.0] * 3], [[0.0] * 3]]
