"""The cases: each matrix of each shape at each number of rows, with what the rule chooses for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.backend import PACKED_SKINNY_BACKEND
from atom_kernels.linear.triton.choice.configs import skinny_configs
from atom_kernels.linear.triton.tuning import LINEAR_TUNING, PACKED
from atom_kernels.moe.contract import ExpertsProblem
from atom_kernels.moe.triton.configs import ExpertsConfigs
from atom_kernels.moe.triton.experts_backend import EXPERTS_BACKEND, PACKED_EXPERTS_BACKEND
from atom_kernels.moe.tuning import MOE_EXPERTS_TUNING
from atom_kernels.operator import Backend
from atom_kernels.platform import detect_platform
from atom_kernels.tuned.tuner import RIVAL, Config, Tuning
from benchmarks.kernels.case import DTYPE
from benchmarks.kernels.dense import linear_problem
from benchmarks.kernels.untuned.shapes import DENSE, MIXTURES

_SEED = 0


@dataclass(frozen=True)
class UntunedProblem:
    """What the tuner tunes as one: a linear, or both products of experts.

    Attributes:
        tuning: how that is done.
        choose: (problem, num_rows) -> by the tuner's parts, what serves where no table has the problem.
        packed: what serves it in other formats than bfloat16.
        most_rows: the most that what is tuned serves; None for any number.
    """

    model: str
    name: str
    problem: Any
    tuning: Tuning
    choose: Callable[[Any, int], Mapping[str, Config]]
    packed: Backend
    most_rows: int | None = None

    @property
    def key(self) -> tuple[str, str]:
        """The operator, and the key under which its tables would have it."""
        return self.tuning.operator, self.tuning.key(self.problem)


@dataclass(frozen=True)
class UntunedCase:
    """One problem at one number of rows."""

    untuned: UntunedProblem
    num_rows: int

    @property
    def operator(self) -> str:
        return self.untuned.tuning.operator

    @property
    def model(self) -> str:
        return self.untuned.model

    @property
    def label(self) -> str:
        return f"{self.untuned.name}, rows {self.num_rows}"

    def chosen(self) -> Mapping[str, Config]:
        """By the tuner's parts, what the rule chooses."""
        return self.untuned.choose(self.untuned.problem, self.num_rows)


def all_cases(models: Sequence[str], rows: Sequence[int], held: str = "bfloat16") -> list[UntunedCase]:
    """Cases in an order drawn by a fixed seed, so that the first ones stand for all; no problem comes twice.

    Args:
        models: names in `DENSE` and `MIXTURES`.
        held: the format of weights: "bfloat16", or one of `PACKED`, where heads are left out and so is what our kernels
            do not read.
    """
    problems = list({untuned.key: untuned for model in models for untuned in _problems(model)}.values())
    if held != "bfloat16":
        platform = detect_platform()
        packed = (_packed(untuned, held) for untuned in problems if untuned.name != "lm_head")
        problems = [untuned for untuned in packed if untuned.packed.supports(untuned.problem, platform) is None]
    cases = [
        UntunedCase(untuned, num_rows)
        for untuned in problems
        for num_rows in rows
        if untuned.most_rows is None or num_rows <= untuned.most_rows
    ]
    random.Random(_SEED).shuffle(cases)
    return cases


def _problems(model: str) -> Iterator[UntunedProblem]:
    if model in DENSE:
        for name, (inputs, outputs, bias) in DENSE[model].linears.items():
            problem = linear_problem(name, inputs, outputs, bias)
            yield UntunedProblem(model, name, problem, LINEAR_TUNING, _choose_linear, PACKED_SKINNY_BACKEND)
    else:
        hidden, mixture = MIXTURES[model]
        experts = ExpertsProblem(mixture.num_experts, mixture.top_k, hidden, mixture.intermediate_size, DTYPE)
        most_rows = EXPERTS_BACKEND.rows_limit(experts, detect_platform())
        name = f"{mixture.num_experts} experts, top {mixture.top_k}"
        choice = (MOE_EXPERTS_TUNING, _choose_experts, PACKED_EXPERTS_BACKEND)
        yield UntunedProblem(model, name, experts, *choice, most_rows)


def _packed(untuned: UntunedProblem, held: str) -> UntunedProblem:
    """The same with its weights in a format of `PACKED`."""
    weights, inputs = PACKED[held]
    is_linear = isinstance(untuned.problem, LinearProblem)
    formats = {"weight_format": weights} if is_linear else {"gate_up_format": weights, "down_format": weights}
    problem = replace(untuned.problem, **formats, input_format=inputs)
    return replace(untuned, name=f"{untuned.name}, in {weights.name}", problem=problem, most_rows=None)


def _choose_linear(problem: LinearProblem, num_rows: int) -> Mapping[str, Config]:
    limits = skinny_configs(problem, detect_platform())
    config = next((config for limit, config in limits.items() if num_rows <= limit), None)
    return {"linear": RIVAL if config is None else asdict(config)}


def _choose_experts(problem: ExpertsProblem, num_rows: int) -> Mapping[str, Config]:
    return asdict(ExpertsConfigs(problem, detect_platform().name).for_tokens(num_rows))
