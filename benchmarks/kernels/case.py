"""One kernel at one shape: what is timed, beside what, and the least work that it must do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from atom_kernels.operator import Op, Work
from atom_kernels.plan import Plan, PlanRow
from atom_kernels.select import select
from atom_kernels.tuned.graph_timing import num_copies

DTYPE = torch.bfloat16
# Bytes that torch may hold for reuse before a case: giving memory back and asking for it again takes time.
_MOST_RESERVED = 32 << 30
Call = Callable[[], Any]


class NamedCase(Protocol):
    """What every case says of itself."""

    @property
    def operator(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def label(self) -> str: ...


Case = TypeVar("Case", bound=NamedCase)


@dataclass(frozen=True)
class Sides:
    """Calls with data of their own each, so that none finds it in the caches: ours, and plain torch where it can."""

    backend: str
    ours: Sequence[Call]
    torch: Sequence[Call] | None = None


@dataclass(frozen=True)
class KernelCase:
    """Attributes:
    operator: what is measured, e.g. ``"linear"``.
    model: whose shapes.
    label: which of them, and how many rows or requests.
    work: bytes and operations that cannot be avoided.
    build: makes the data on the GPU.
    """

    operator: str
    model: str
    label: str
    work: Work
    build: Callable[[], Sides]


def in_time(cases: Iterable[Case], seconds: float) -> Iterator[Case]:
    """The cases up to the first before which so much time has passed; that one is named."""
    started = time.perf_counter()
    for case in cases:
        if time.perf_counter() - started > seconds:
            print(f"stopped after {seconds:.0f} s, before {case.operator} {case.model} {case.label}")
            return
        yield case


def give_back_memory() -> None:
    """Return what torch holds for reuse to the GPU, where that is much; called between cases."""
    if torch.cuda.memory_reserved() > _MOST_RESERVED:
        torch.cuda.empty_cache()


def random(*shape: int, scale: float = 1.0, dtype: torch.dtype = DTYPE) -> torch.Tensor:
    """Normal numbers on the GPU; the benchmark seeds the generator."""
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def operator_case(
    op: Op, problem: Any, num_rows: int, model: str, label: str, make_inputs: Callable[[], tuple[torch.Tensor, ...]]
) -> KernelCase:
    """The plan for a problem beside the plan that may use torch only."""
    work = op.work(problem, num_rows)

    def build() -> Sides:
        plan, plain = select(op, problem), select(op, problem, only_backend="torch")
        ours: list[Call] = []
        theirs: list[Call] = []
        for _ in range(num_copies(work.num_bytes)):
            weights = {
                name: None if spec.optional else random(*spec.shape, scale=0.02, dtype=spec.dtype)
                for name, spec in op.weights(problem).items()
            }
            inputs = make_inputs()
            ours.append(bind(plan.prepare(weights), inputs))
            theirs.append(bind(plain.prepare(weights), inputs))
        return Sides(serving_row(plan, num_rows).implementation, ours, theirs)

    return KernelCase(op.name, model, f"{label}, rows {num_rows}", work, build)


def serving_row(plan: Plan, num_rows: int) -> PlanRow:
    """The row of a plan that serves a call of so many rows."""
    return next(row for row in plan.rows if row.max_rows is None or num_rows <= row.max_rows)


def bind(function: Callable[..., Any], inputs: Sequence[Any]) -> Call:
    return lambda: function(*inputs)
