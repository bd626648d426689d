"""`Plan`: the choice made once for one problem; `BoundPlan`: that choice with its weights, called at every step."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.opaque import register_opaque
from atom_kernels.operator import check_weights

if TYPE_CHECKING:
    from atom_kernels.formats import RowRounding
    from atom_kernels.operator import Op, WeightLayout, Weights


@dataclass(frozen=True)
class PlanRow:
    """The implementation that serves calls of up to `max_rows` rows (None: all that are left)."""

    max_rows: int | None
    backend: str
    implementation: str
    layout: WeightLayout
    bind: Callable[[Any, Weights], Callable[..., Any]]
    is_fallback: bool
    row_rounding: RowRounding | None = None
    takes_neighbors: bool = False
    most_rows_with_term: int = 0


@dataclass(frozen=True)
class Plan:
    """What runs one problem on one platform, by number of rows, and why.

    Attributes:
        op, problem: what was asked for.
        rows: tried in order; the first whose `max_rows` is not exceeded serves the call.
        passed_over: (backend and implementation, reason) of those not used.
        layouts: (layout name, bytes) of every copy of the weights that the rows need.
    """

    op: Op
    problem: Any
    rows: tuple[PlanRow, ...]
    passed_over: tuple[tuple[str, str], ...]
    layouts: tuple[tuple[str, int], ...]

    @property
    def has_kernel(self) -> bool:
        """Whether a kernel serves the calls of fewest rows, instead of plain torch."""
        return not self.rows[0].is_fallback

    @property
    def row_rounding(self) -> RowRounding | None:
        """How rows may come rounded, codes and scales, to calls of any number of rows; None if they may not."""
        found = {row.row_rounding for row in self.rows}
        return found.pop() if len(found) == 1 else None

    @property
    def takes_neighbors(self) -> bool:
        """Whether kernels take in what stands around a product: norm, activation and residual, or rounded rows."""
        return any(row.takes_neighbors or row.row_rounding is not None for row in self.rows)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weight layouts together."""
        return sum(num_bytes for _, num_bytes in self.layouts)

    def prepare(self, weights: Mapping[str, torch.Tensor | None] | None = None) -> BoundPlan:
        """Pack `weights` once into the layouts of the rows.

        The result holds no reference to a source tensor that no row uses as it is: drop yours and its memory is free.

        Raises:
            WeightError: a weight is missing, unknown, or of another shape or dtype; it names the weight.
        """
        given = check_weights(self.op.name, self.op.weights(self.problem), weights or {})
        packed: dict[str, Weights] = {}
        for row in self.rows:
            if row.layout.name not in packed:
                packed[row.layout.name] = row.layout.pack(self.problem, given)
        kernels = [(row.max_rows, row.bind(self.problem, packed[row.layout.name])) for row in self.rows]
        return BoundPlan(self, kernels, packed)

    def __call__(self, *inputs: Any) -> Any:
        """Run an op that has no weights. Bind it once with `prepare()` where calls are many."""
        return self.prepare()(*inputs)


# Opaque ops carry a plan as an integer, since schemas know no objects; entries vanish with their plans.
_handles: weakref.WeakValueDictionary[int, BoundPlan] = weakref.WeakValueDictionary()
_next_handle = itertools.count(1)


class BoundPlan:
    """A plan with its weights: call it with the op's inputs, the first of which has the rows in its leading dimension.

    Eager calls go straight to the kernel. Under torch.compile the call is one opaque op, so that neither the choice by
    rows nor the kernel is traced.
    """

    __slots__ = ("__weakref__", "_limited", "_unlimited", "handle", "opaque_op", "packed", "plan")

    def __init__(
        self, plan: Plan, kernels: list[tuple[int | None, Callable[..., Any]]], packed: dict[str, Weights]
    ) -> None:
        self.plan = plan
        self.packed = packed
        self._limited = tuple((limit, kernel) for limit, kernel in kernels if limit is not None)
        self._unlimited = kernels[-1][1]
        self.handle = next(_next_handle)
        self.opaque_op = register_opaque(plan.op, bound_plan)
        _handles[self.handle] = self

    def __call__(self, *inputs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.opaque_op(self.handle, *inputs)
        return self._kernel_for(inputs[0])(*inputs)

    def in_runs(self, *inputs: Any) -> Callable[[slice], Any]:
        """The output of an eager call, a run of rows at a time: the first can be sent before the next is computed.

        A kernel that has ``in_runs`` leaves its last step to each run; any other computes the whole at once.
        """
        kernel = self._kernel_for(inputs[0])
        if in_runs := getattr(kernel, "in_runs", None):
            return in_runs(*inputs)
        return kernel(*inputs).__getitem__

    def _kernel_for(self, first_input: torch.Tensor) -> Callable[..., Any]:
        if self._limited:
            num_rows = first_input.shape[0]
            for max_rows, kernel in self._limited:
                if num_rows <= max_rows:
                    return kernel
        return self._unlimited

    def sizes_told_apart(self, most_rows: int) -> list[int]:
        """The least number of rows, up to `most_rows`, for each set of kernels that calls of other numbers launch too.

        Implementations that have several sets tell them apart by ``kernels_for(rows)``.
        """
        sizes, first = [], 1
        for limit, kernel in (*self._limited, (None, self._unlimited)):
            last = most_rows if limit is None else min(limit, most_rows)
            kernels_for = getattr(kernel, "kernels_for", lambda _: None)
            found: dict[Any, int] = {}
            for size in range(first, last + 1):
                found.setdefault(kernels_for(size), size)
            sizes += found.values()
            first = max(first, last + 1)
        return sizes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights, shared storage counted once."""
        seen: dict[int, int] = {}
        for weights in self.packed.values():
            for tensor in weights.values():
                if tensor is not None:
                    key = id(tensor) if tensor.layout is not torch.strided else tensor.data_ptr()
                    seen[key] = tensor.numel() * tensor.element_size()
        return sum(seen.values())


def bound_plan(handle: int) -> BoundPlan:
    """The living plan of a handle, for opaque ops."""
    return _handles[handle]
