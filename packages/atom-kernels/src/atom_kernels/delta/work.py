"""The least that an operator of a delta net must do in a step."""

from __future__ import annotations

from atom_kernels.delta.contract import GatedDeltaProblem, ShortConvProblem
from atom_kernels.operator import Work


def conv_work(problem: ShortConvProblem, num_rows: int, num_states: int) -> Work:
    """Rows in and out, the filters, and `num_states` states: those that are read, and those that are written."""
    elements = (2 * num_rows + problem.width + num_states * (problem.width - 1)) * problem.channels
    return Work(elements * problem.dtype.itemsize, 2 * num_rows * problem.channels * problem.width)


def delta_work(problem: GatedDeltaProblem, num_rows: int, num_states: int) -> Work:
    """Rows in and out, and `num_states` states: those that are read, and those that are written.

    An element of a state is read twice and written by each row: 7 operations.
    """
    state = problem.num_value_heads * problem.key_dim * problem.value_dim
    row = problem.channels + problem.gates + problem.num_value_heads * (1 + problem.value_dim)
    return Work(num_rows * row * problem.dtype.itemsize + 4 * num_states * state, 7 * num_rows * state)
