"""`select`: choose, once, what runs a problem on a platform, and remember why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atom_kernels.plan import Plan, PlanRow
from atom_kernels.platform import detect_platform

if TYPE_CHECKING:
    from atom_kernels.operator import Backend, Op
    from atom_kernels.platform import Platform


# Backends of our own: `explain` names those that an operator lacks, since they may still be written.
_OURS_TO_WRITE = ("aiter", "triton", "native")


class NoBackendError(RuntimeError):
    """No backend can run a problem here; the message lists every backend with its reason."""


# By the operator's identity, the problem, the platform and the only backend.
_remembered: ContextVar[dict[tuple[Any, ...], Plan] | None] = ContextVar("remembered_plans", default=None)


@contextmanager
def plans_remembered() -> Iterator[None]:
    """Within it, on this thread, a choice made once is not made again: models have many layers of a few sizes.

    What choices depend on beside problem and platform (settings, tuned configurations, compiled libraries) is taken not
    to change meanwhile; afterwards everything is chosen anew.
    """
    if _remembered.get() is not None:
        yield
        return
    token = _remembered.set({})
    try:
        yield
    finally:
        _remembered.reset(token)


def select(op: Op, problem: Any, platform: Platform | None = None, only_backend: str | None = None) -> Plan:
    """The plan for `problem`: rows in the order AITER, Triton, native, oneDNN, torch.

    A backend with a row limit is followed by others until one takes any number of rows. Where a later backend can use
    the weight layout that is held already, it is preferred to one that would keep a second copy.

    Args:
        op: the operator.
        problem: its problem dataclass.
        platform: where to run; None is this machine.
        only_backend: consider no backend of another name; its last row then takes any number of rows.

    Raises:
        NoBackendError: nothing can run it.
    """
    platform = platform or detect_platform()
    remembered = _remembered.get()
    if remembered is None:
        return _select(op, problem, platform, only_backend)
    key = (id(op), problem, platform, only_backend)
    if key not in remembered:
        remembered[key] = _select(op, problem, platform, only_backend)
    return remembered[key]


def _select(op: Op, problem: Any, platform: Platform, only_backend: str | None) -> Plan:
    passed_over: list[tuple[str, str]] = []
    usable: list[Backend] = []
    for backend in op.ordered_backends():
        if only_backend is not None and backend.name != only_backend:
            continue
        reason = backend.why_not(problem, platform)
        if reason is None:
            usable.append(backend)
        else:
            passed_over.append((_label(backend), reason))
    written = {backend.name for backend in op.backends}
    if only_backend is None:
        missing = [name for name in platform.backends if name in _OURS_TO_WRITE and name not in written]
        passed_over.extend((name, f"has no implementation of {op.name}") for name in missing)
    if not usable:
        tried = "; ".join(f"{label}: {reason}" for label, reason in passed_over) or f"no backend {only_backend!r}"
        raise NoBackendError(f"nothing can run {op.name} for {problem} on {platform.name}: {tried}")
    rows = _choose_rows(op, problem, platform, usable, passed_over)
    if rows[-1].max_rows is not None:
        if only_backend is None:
            raise NoBackendError(
                f"{op.name} for {problem} on {platform.name}: no backend takes more than {rows[-1].max_rows} rows"
            )
        rows[-1] = replace(rows[-1], max_rows=None)
    return _make_plan(op, problem, rows, passed_over)


def plan_with(op: Op, problem: Any, backend: Backend) -> Plan:
    """A plan of exactly one backend for any number of rows; its `supports` is not asked (parity checks, benchmarks)."""
    return _make_plan(op, problem, [_row(backend, None)], [])


def _choose_rows(
    op: Op, problem: Any, platform: Platform, usable: list[Backend], passed_over: list[tuple[str, str]]
) -> list[PlanRow]:
    rows: list[PlanRow] = []
    for position, backend in enumerate(usable):
        limit = backend.rows_limit(problem, platform)
        if rows and limit is not None and limit <= (rows[-1].max_rows or 0):
            passed_over.append((_label(backend), f"serves up to {limit} rows, which {rows[-1].implementation} does"))
            continue
        held = {row.layout.name for row in rows}
        sharing = [
            other
            for other in usable[position:]
            if other.layout.name in held and other.rows_limit(problem, platform) is None
        ]
        if rows and backend.layout.name not in held and sharing and op.source_bytes(problem):
            extra = backend.layout.num_bytes(problem, op.source_bytes(problem)) / 1e6
            passed_over.append((_label(backend), f"would keep a second copy of the weights ({extra:.1f} MB)"))
            continue
        rows.append(_row(backend, limit))
        if limit is None:
            passed_over.extend(
                (_label(other), f"{backend.implementation} comes first") for other in usable[position + 1 :]
            )
            return rows
    return rows


def _row(backend: Backend, limit: int | None) -> PlanRow:
    names, how = (backend.name, backend.implementation), (backend.layout, backend.bind, backend.is_fallback)
    around = (backend.takes_neighbors, backend.most_rows_with_term)
    return PlanRow(limit, *names, *how, backend.row_rounding, *around)


def _label(backend: Backend) -> str:
    return f"{backend.name} ({backend.implementation})"


def _make_plan(op: Op, problem: Any, rows: list[PlanRow], passed_over: list[tuple[str, str]]) -> Plan:
    source_bytes = op.source_bytes(problem)
    layouts = {row.layout.name: row.layout.num_bytes(problem, source_bytes) for row in rows}
    return Plan(op, problem, tuple(rows), tuple(passed_over), tuple(layouts.items()))
