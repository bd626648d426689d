"""A linear that adds what adapters give: the bits of both kernels one after the other, whatever the threads."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch

from atom_kernels.adapters import ADD_LOW_RANK, LowRankProblem, LowRankTerm, MatricesInC
from atom_kernels.formats import Integers, Offset
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.select import NoBackendError, select

BF16, F32 = torch.bfloat16, torch.float32
# Inputs, parts, rank: outputs that fill no tile, parts that threads share, rows of A that fill no block.
SIZES = ((24, (32, 16, 16), 5), (600, (300, 40, 1), 3), (576, (192, 64), 16), (96, (2500,), 4))


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def make(sizes, dtype, out_dtype=None, weight_format=None, *, num_rows=6):
    """A bound linear in C, a term for it, and inputs."""
    num_inputs, parts, rank = sizes
    formats = {} if weight_format is None else {"weight_format": weight_format}
    problem = LinearProblem(num_inputs, sum(parts), dtype, bias=True, out_dtype=out_dtype, **formats)
    try:
        plan = select(LINEAR, problem, only_backend="native")
    except NoBackendError as error:
        pytest.skip(str(error))
    if not all(row.most_rows_with_term for row in plan.rows):
        pytest.skip("adds no term: products of tiles")
    generator = torch.Generator().manual_seed(0)
    weights, (x,) = LINEAR.make_inputs(problem, num_rows, generator)
    low_rank = LowRankProblem(num_inputs, parts, rank, 3, dtype)
    matrices, (_, _, places) = ADD_LOW_RANK.make_inputs(low_rank, num_rows, generator)
    kernel = select(ADD_LOW_RANK, low_rank, only_backend="native").prepare(matrices)
    a, b = matrices["a"], matrices["b"]
    term = LowRankTerm(places, a, b, parts, lambda y, x: kernel(y, x, places), MatricesInC(a, b, parts))
    return plan.prepare(weights), x, term


@pytest.mark.parametrize(("dtype", "out_dtype"), [(F32, None), (BF16, None), (BF16, F32)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_has_the_bits_of_both_one_after_the_other(sizes, dtype, out_dtype, threads):
    for num_rows in (1, 2, 3, 6, 17, 64):
        bound, x, term = make(sizes, dtype, out_dtype, num_rows=num_rows)
        apart = bound(x)
        term.add(apart, x)
        together = bound(x, term)
        assert together.dtype == apart.dtype
        assert torch.equal(together, apart)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("weight_format", [Integers(8), Integers(4, 32, Offset.MINIMUM)], ids=lambda one: one.name)
def test_packed_weights_do_so_where_sums_are_kept(weight_format, dtype, threads):
    for sizes, num_rows in product(((96, (32, 16, 17), 5), (576, (192, 64), 16), (96, (2500,), 4)), (1, 6, 8, 17, 64)):
        bound, x, term = make(sizes, dtype, F32, weight_format, num_rows=num_rows)
        apart = bound(x)
        term.add(apart, x)
        assert torch.equal(bound(x, term), apart)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_it_has_the_same_bits_with_any_number_of_threads(dtype, request):
    """Parts of threads begin and end within a part of the outputs."""
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    bound, x, term = make((576, (192, 64, 130), 5), dtype)
    found = []
    for threads in (1, 2, 3, 4):
        torch.set_num_threads(threads)
        found.append(bound(x, term))
    assert all(torch.equal(found[0], other) for other in found[1:])


def test_a_term_of_another_layer_is_refused():
    bound, x, term = make(SIZES[0], F32)
    (a, b), parts = (term.a_NRI, term.b_NrO), term.parts
    for other in ((a[..., 1:], b, parts), (a, b[..., :48], parts[:2]), (a.half(), b.half(), parts)):
        with pytest.raises(TypeError, match="a linear of inputs, outputs and dtype .* was given adapters of"):
            bound(x, term._replace(in_c=MatricesInC(*other)))
