"""The vocabulary lookup in Triton copies the rows of its table, bit by bit, in one launch."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.cases import parity_cases
from atom_kernels.embedding import OP, EmbeddingProblem, embedding
from atom_kernels.platform import detect_platform
from atom_kernels.select import select
from atom_kernels.triton.launch import launches_go_to

# Widths of one element, of several rows to a program, of a whole block and a rest, and of two blocks and a rest.
_SIZES = (1, 20, 128, 2048, 2050, 5120)
_FIRST = 11
_ROWS = 37


def lookup(size=20, dtype=torch.bfloat16, first_id: int | None = _FIRST):
    """The kernel over a random table of `_ROWS` rows, and the table."""
    table = torch.randn(_ROWS, size, generator=torch.Generator().manual_seed(size)).to(dtype)
    plan = select(OP, EmbeddingProblem(_ROWS, size, dtype, first_id), only_backend="triton")
    return plan.prepare({"weight": table.to(detect_platform().device)}), table


def ids(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device=detect_platform().device)


def test_odd_shapes_in_every_dtype_agree_with_the_reference():
    count = 0
    for case in parity_cases(OP, detect_platform(), only_backend="triton"):
        torch.testing.assert_close(case.run().cpu(), case.expected(), rtol=0, atol=0)
        count += 1
    assert count == 2 * 3 * 3 * len(OP.parity_rows)


@pytest.mark.parametrize("id_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("size", _SIZES)
def test_ids_at_the_border_of_a_part_of_the_vocabulary_are_found_and_those_beside_it_give_zeros(size, id_dtype):
    kernel, table = lookup(size)
    asked = ids(_FIRST - 1, _FIRST, _FIRST + _ROWS - 1, _FIRST + _ROWS, 0, 2**31 - 1, -(2**31), dtype=id_dtype)
    got = kernel(asked).cpu()
    assert torch.equal(got, embedding(asked.cpu(), table, first_id=_FIRST))
    assert torch.equal(got[1:3], table[[0, -1]])


def test_an_id_beyond_the_whole_vocabulary_reads_nothing_beside_the_table():
    kernel, table = lookup(first_id=None)
    got = kernel(ids(-1, 0, _ROWS - 1, _ROWS)).cpu()
    assert torch.equal(got[1:3], table[[0, -1]])
    assert not got[[0, 3]].any()


def test_ids_of_no_tokens_of_two_dimensions_and_apart_are_served():
    kernel, table = lookup(first_id=None)
    assert kernel(ids()).shape == (0, 20)
    assert torch.equal(kernel(ids(5, 3, 9, 0).view(2, 2)).cpu(), table[torch.tensor([[5, 3], [9, 0]])])
    assert torch.equal(kernel(ids(5, 3, 9, 0)[::2]).cpu(), table[[5, 9]])


def test_rows_that_are_not_numbers_are_copied_too():
    table = torch.tensor([[float("inf"), float("nan"), -0.0]], device=detect_platform().device)
    plan = select(OP, EmbeddingProblem(1, 3, torch.float32), only_backend="triton")
    got = plan.prepare({"weight": table})(ids(0))
    assert torch.equal(got.view(torch.int32), table.view(torch.int32))


def test_ids_in_another_dtype_are_refused():
    kernel, _ = lookup()
    with pytest.raises(TypeError, match=r"ids in int32 or int64, not in torch\.float32"):
        kernel(torch.ones(3, device=detect_platform().device))


@pytest.mark.parametrize(
    ("size", "programs"), [(8, (1, 1)), (128, (2, 1)), (2048, (17, 1)), (5120, (17, 3))], ids=lambda value: str(value)
)
def test_a_lookup_is_one_launch_whose_programs_have_as_much_to_copy_for_every_width(size, programs):
    grids = []
    kernel, _ = lookup(size)
    with launches_go_to(lambda kernel, grid, *arguments, **options: grids.append(grid)):
        kernel(ids(*range(17)))
    assert grids == [programs]


@pytest.mark.gpu
@pytest.mark.parametrize("first_id", [None, _FIRST])
def test_a_table_of_a_real_model_is_looked_up_on_a_gpu(first_id):
    problem = EmbeddingProblem(50_000, 4096, torch.bfloat16, first_id)
    weights, (asked,) = OP.make_inputs(problem, 4096, torch.Generator().manual_seed(0))
    got = select(OP, problem, only_backend="triton").prepare({"weight": weights["weight"].cuda()})(asked.cuda())
    assert torch.equal(got.cpu(), embedding(asked, weights["weight"], first_id=first_id))
