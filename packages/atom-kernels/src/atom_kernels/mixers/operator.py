"""A mixer as an operator: what `explain`, `check` and `bench` ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_kernels.cases import BenchCase, ParityCase
from atom_kernels.mixers.cases import MixerStep, bench_requests, describe_requests
from atom_kernels.mixers.plan import MixerPlan, select_mixer, usable_plans
from atom_kernels.mixers.requests import Requests
from atom_kernels.operator import Tolerance

if TYPE_CHECKING:
    import torch

    from atom_kernels.mixers.backend import MixerProblem
    from atom_kernels.platform import Platform


@dataclass(frozen=True, kw_only=True)
class MixerOperator:
    """One layer's mixer with its prologue and cache write, for the command line of kernel developers.

    Attributes:
        name: the operator's name.
        contract: the public function that is the reference; it is plain torch over caches that are written.
        explained: ``platform -> (label, problem)`` of real models, for `explain`.
        parity_steps: ``platform -> (problem, step)``, odd shapes and every rule, for `check` and the tests.
        bench_steps: ``(platform, requests) -> (label, problem, step)`` of real models.
        describe: ``problem -> str``, for people.
        tolerance: how far results of each dtype may be from the reference.
    """

    name: str
    contract: Callable[..., Any]
    explained: Callable[[Platform], Iterator[tuple[str, MixerProblem]]]
    parity_steps: Callable[[Platform], Iterator[tuple[MixerProblem, MixerStep]]]
    bench_steps: Callable[[Platform, Requests], Iterator[tuple[str, MixerProblem, MixerStep]]]
    describe: Callable[[Any], str]
    tolerance: dict[str, Tolerance]

    @property
    def reference(self) -> Callable[..., Any]:
        """The contract itself."""
        return self.contract

    def explain(self, platform: Platform) -> list[str]:
        lines = []
        for label, problem in self.explained(platform):
            plan = select_mixer(problem, platform)
            lines.append(label)
            lines.append(f"  any rows       {plan.backend}   [layout {plan.layout.name}]")
            if plan.kernels:
                lines.append(f"  kernels        {', '.join(plan.kernels)}")
            lines.extend(f"  passed over    {name}: {reason}" for name, reason in plan.reasons)
        return lines

    def parity_cases(self, platform: Platform) -> Iterator[ParityCase]:
        for problem, step in self.parity_steps(platform):
            step = step.to(platform.device)
            reference = select_mixer(problem, platform, only_backend="reference")
            for plan in usable_plans(problem, platform):
                if plan.has_kernel:
                    yield ParityCase(
                        backend=plan.backend,
                        label=self.describe(problem),
                        run=lambda plan=plan, step=step: step.run(plan),
                        expected=lambda plan=reference, step=step: step.run(plan),
                        tolerance=self.tolerance[problem.dtype],
                    )

    def bench_cases(self, platform: Platform) -> Iterator[BenchCase]:
        for requests in bench_requests(platform.device):
            for label, problem, step in self.bench_steps(platform, requests):
                baseline = select_mixer(problem, platform, only_backend="torch")
                step = step.to(platform.device)
                for plan in usable_plans(problem, platform):
                    if plan.has_kernel:
                        yield BenchCase(
                            backend=plan.backend,
                            label=f"{label} {describe_requests(requests)}",
                            run=_runner(plan, step),
                            baseline=_runner(baseline, step),
                            work=problem.work(requests),
                        )


def _runner(plan: MixerPlan, step: MixerStep) -> Callable[[], torch.Tensor]:
    """The step over a cache of its own, with weights that were prepared before."""
    caches, weights = step.caches_for(plan), plan.prepare(step.weights)
    return lambda: step.run_in_place(plan, caches, weights=weights)
