"""What `explain`, `check` and `bench` ask of an operator; every `Op` answers from its own fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from atom_kernels.formats import WeightFormat
from atom_kernels.operator import Op, Tolerance, Work
from atom_kernels.select import plan_with, select

if TYPE_CHECKING:
    from atom_kernels.operator import Weights
    from atom_kernels.platform import Platform

BENCH_ROWS = (1, 16, 512)


@dataclass(frozen=True)
class ParityCase:
    """One backend against the reference: `run` and `expected` give a tensor or a tuple of tensors."""

    backend: str
    label: str
    run: Callable[[], Any]
    expected: Callable[[], Any]
    tolerance: Tolerance


@dataclass(frozen=True)
class BenchCase:
    """One backend on one realistic problem; `baseline` is the same in plain torch, `work` the least to be done."""

    backend: str
    label: str
    run: Callable[[], Any]
    baseline: Callable[[], Any]
    work: Work


class Operator(Protocol):
    """An operator that is not an `Op` (attention, sampling) answers these by itself."""

    name: str
    contract: Callable[..., Any]
    reference: Callable[..., Any]

    def explain(self, platform: Platform) -> Sequence[str]: ...
    def parity_cases(self, platform: Platform) -> Iterable[ParityCase]: ...
    def bench_cases(self, platform: Platform) -> Iterable[BenchCase]: ...


def explain(op: Op | Operator, platform: Platform) -> Sequence[str]:
    """Lines for people: for each example problem every row of its plan, and who was passed over why."""
    if not isinstance(op, Op):
        return op.explain(platform)
    lines: list[str] = []
    for problem in op.examples():
        plan = select(op, problem, platform)
        lines.append(_describe(problem))
        first = 1
        for row in plan.rows:
            span = f"rows {first}..{row.max_rows or ''}"
            lines.append(f"  {span:<14} {row.backend:<7} {row.implementation}   [layout {row.layout.name}]")
            first = (row.max_rows or 0) + 1
        if plan.weight_bytes:
            layouts = ", ".join(f"{name} {num_bytes / 1e6:.2f} MB" for name, num_bytes in plan.layouts)
            lines.append(f"  weights        {layouts}")
        lines.extend(f"  passed over    {backend}: {reason}" for backend, reason in plan.passed_over)
    return lines


def parity_cases(op: Op | Operator, platform: Platform, only_backend: str | None = None) -> Iterator[ParityCase]:
    """Every backend that can run here, or the one of that name, over the op's odd problems and row counts, seeded."""
    if not isinstance(op, Op):
        yield from (case for case in op.parity_cases(platform) if _is_of(case, only_backend))
        return
    for backend in op.ordered_backends():
        if platform.why_not(backend.name) or only_backend not in (None, backend.name):
            continue
        for problem in op.parity_problems():
            if backend.supports(problem, platform):
                continue
            plan = plan_with(op, problem, backend)
            for num_rows in op.parity_rows:
                made = cache(partial(_seeded, op, problem, num_rows))
                yield ParityCase(
                    backend=f"{backend.name} ({backend.implementation})",
                    label=f"{_describe(problem)} rows={num_rows}",
                    run=partial(_run, op, plan, made, platform),
                    expected=partial(_expect, op, problem, made),
                    tolerance=(backend.tolerance or op.tolerance)(problem),
                )


def _seeded(op: Op, problem: Any, num_rows: int) -> tuple[Weights, tuple[Any, ...]]:
    """Weights and inputs of a case: made when it is run, for drawing and packing them may take longer than that."""
    return op.make_inputs(problem, num_rows, torch.Generator().manual_seed(num_rows))


def _run(op: Op, plan: Any, made: Callable[[], tuple[Weights, tuple[Any, ...]]], platform: Platform) -> Any:
    weights, inputs = _on_device(*made(), platform)
    return _outputs(op, plan.prepare(weights), inputs)()


def _expect(op: Op, problem: Any, made: Callable[[], tuple[Weights, tuple[Any, ...]]]) -> Any:
    weights, inputs = made()
    return _outputs(op, partial(op.reference, problem, weights), inputs)()


def bench_cases(op: Op | Operator, platform: Platform, only_backend: str | None = None) -> Iterator[BenchCase]:
    """Every backend that can run here, or the one of that name, on the op's examples, at one, 16 and 512 rows."""
    if not isinstance(op, Op):
        yield from (case for case in op.bench_cases(platform) if _is_of(case, only_backend))
        return
    for problem in op.examples():
        usable = [backend for backend in op.ordered_backends() if not backend.why_not(problem, platform)]
        baseline = next(backend for backend in reversed(usable) if backend.is_fallback)
        usable = [backend for backend in usable if only_backend in (None, backend.name)]
        for num_rows in BENCH_ROWS:
            made = op.make_inputs(problem, num_rows, torch.Generator().manual_seed(0))
            weights, inputs = _on_device(*made, platform)
            kernels = {id(backend): plan_with(op, problem, backend).prepare(weights) for backend in (*usable, baseline)}
            for backend in usable:
                yield BenchCase(
                    backend=f"{backend.name} ({backend.implementation})",
                    label=f"{_describe(problem)} rows={num_rows}",
                    run=partial(kernels[id(backend)], *inputs),
                    baseline=partial(kernels[id(baseline)], *inputs),
                    work=op.work(problem, num_rows),
                )


def _is_of(case: ParityCase | BenchCase, only_backend: str | None) -> bool:
    return only_backend is None or case.backend.split()[0] == only_backend


def error_share(actual: Any, expected: Any, tolerance: Tolerance) -> float:
    """The largest error as a share of what is allowed for that element; up to 1 agrees. Shapes must be equal."""
    largest = 0.0
    for got, want in zip(_tuple(actual), _tuple(expected), strict=True):
        if want.numel():
            wanted = want.cpu().double()
            error = _error(got, wanted)
            allowed = tolerance.atol + tolerance.rtol * wanted.abs()
            largest = max(largest, torch.where(error == 0, 0.0, error / allowed).max().item())
    return largest


def mismatch(actual: Any, expected: Any, tolerance: Tolerance) -> str | None:
    """None if every tensor agrees in shape, dtype and values, else what differs, in one line."""
    pairs = list(zip(_tuple(actual), _tuple(expected), strict=False))
    if len(_tuple(actual)) != len(_tuple(expected)):
        return f"{len(_tuple(actual))} outputs, expected {len(_tuple(expected))}"
    for index, (got, want) in enumerate(pairs):
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"output {index} is {list(got.shape)} {got.dtype}, expected {list(want.shape)} {want.dtype}"
        wanted = want.cpu().double()
        error = _error(got, wanted)
        excess = error - (tolerance.atol + tolerance.rtol * wanted.abs())
        # `not <=` also catches NaN.
        if want.numel() and not bool(((error == 0) | (excess <= 0)).all()):
            allowed = f"{tolerance.atol} + {tolerance.rtol} x"
            return f"output {index} is off by up to {error.max().item():.3g} (allowed {allowed})"
    return None


def _error(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Equals have none, infinite ones among them."""
    found = got.cpu().double()
    return torch.where(found == wanted, 0.0, (found - wanted).abs())


def _on_device(weights: Any, inputs: tuple[Any, ...], platform: Platform) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Random numbers are drawn on the host, the same everywhere; references run there too."""

    def move(value: Any) -> Any:
        return value.to(platform.device) if isinstance(value, torch.Tensor) else value

    return {name: move(tensor) for name, tensor in weights.items()}, tuple(move(value) for value in inputs)


def _outputs(op: Op, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """Calls `function` and gives what is to be compared; inputs that it writes are copied before each call."""
    if not op.written:
        return lambda: op.comparable(function(*inputs))

    def run() -> Any:
        mine = tuple(value.clone() if place in op.written else value for place, value in enumerate(inputs))
        function(*mine)
        return op.comparable(tuple(mine[place] for place in op.written))

    return run


def _tuple(outputs: Any) -> tuple[torch.Tensor, ...]:
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def _describe(problem: Any) -> str:
    found = {field.name: getattr(problem, field.name) for field in fields(problem)}
    # The name of a number format says all of it.
    values = (f"{name}={value.name if isinstance(value, WeightFormat) else value}" for name, value in found.items())
    return " ".join(values).replace("torch.", "")
