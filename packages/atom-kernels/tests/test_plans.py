"""Selection orders backends and says why; a bound plan picks by rows, eager and compiled alike."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import atom_kernels
from atom_kernels.attention import cases as paged
from atom_kernels.attention.index import cases as index
from atom_kernels.attention.mla import cases as latent
from atom_kernels.attention.sparse import cases as sparse
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.mixers.plan import usable_plans
from atom_kernels.norm import ADD_RMS_NORM, RMS_NORM, RMSNormProblem
from atom_kernels.operator import Backend, Op, Tolerance, WeightError, WeightLayout, WeightSpec, Work
from atom_kernels.platform import Facts, platform_from_facts
from atom_kernels.select import NoBackendError, plan_with, plans_remembered, select

CPU = platform_from_facts(Facts())


@dataclass(frozen=True)
class TagProblem:
    size: int = 4


def make_backend(name="torch", tag=1.0, *, reason=None, max_rows=None, layout=None):
    """Adds its tag to x, so that a result tells who computed it."""

    def bind(problem, weights: Any):
        return lambda x: x + weights["weight"] * tag

    return Backend(
        name=name,
        implementation=f"adds {tag}",
        supports=lambda problem, platform: reason,
        bind=bind,
        layout=layout or WeightLayout("source"),
        max_rows=max_rows,
    )


def make_op(*backends, name="tag"):
    return Op(
        name=name,
        contract=lambda x: x,
        reference=lambda problem, weights, x: x + weights["weight"],
        schema="(Tensor x) -> Tensor",
        fake=lambda problem, x: torch.empty_like(x),
        backends=backends,
        weights=lambda problem: {"weight": WeightSpec((problem.size,), torch.float32)},
        make_inputs=lambda problem, num_rows, generator: (
            {"weight": torch.ones(problem.size)},
            (torch.zeros(num_rows, problem.size),),
        ),
        parity_problems=lambda: (TagProblem(),),
        examples=lambda: (TagProblem(),),
        tolerance=lambda problem: Tolerance(0, 0),
        work=lambda problem, num_rows: Work(1),
    )


def prepare(plan):
    return plan.prepare({"weight": torch.ones(4)})


def tag_of(plan, num_rows=1):
    return prepare(plan)(torch.zeros(num_rows, 4))[0, 0].item()


def test_backends_are_tried_in_the_documented_order_however_they_are_listed():
    op = make_op(make_backend("torch", 1.0), make_backend("onednn", 2.0), make_backend("native", 3.0))
    assert tag_of(select(op, TagProblem(), CPU)) == 3.0


def test_every_backend_passed_over_has_its_reason():
    op = make_op(make_backend("aiter"), make_backend("native", reason="only on Sundays"), make_backend("torch"))
    reasons = dict(select(op, TagProblem(), CPU).passed_over)
    assert "ROCm" in reasons["aiter (adds 1.0)"]
    assert reasons["native (adds 1.0)"] == "only on Sundays"


def test_a_backend_that_this_machine_has_but_nobody_wrote_is_named():
    reasons = dict(select(make_op(make_backend("torch")), TagProblem(), CPU).passed_over)
    assert reasons["native"] == "has no implementation of tag"


def test_rows_decide_between_implementations():
    op = make_op(make_backend("native", 3.0, max_rows=2), make_backend("torch", 1.0))
    plan = select(op, TagProblem(), CPU)
    assert [row.max_rows for row in plan.rows] == [2, None]
    assert [tag_of(plan, num_rows) for num_rows in (1, 2, 3, 100)] == [3.0, 3.0, 1.0, 1.0]


class KernelsBySize:
    """An implementation with a kernel for each ten rows, and one for more than 40."""

    def kernels_for(self, num_rows: int) -> int:
        return min(num_rows // 10, 4)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_bound_plan_has_a_number_of_rows_for_each_kernel_that_it_may_launch():
    several = replace(make_backend("native", max_rows=25), bind=lambda problem, weights: KernelsBySize())
    others = replace(make_backend("onednn", max_rows=45), bind=lambda problem, weights: KernelsBySize())
    bound = prepare(select(make_op(several, others, make_backend("torch")), TagProblem(), CPU))
    assert bound.sizes_told_apart(100) == [1, 10, 20, 26, 30, 40, 46]
    assert bound.sizes_told_apart(24) == [1, 10, 20]
    assert prepare(select(make_op(make_backend("torch")), TagProblem(), CPU)).sizes_told_apart(9) == [1]


def test_a_second_copy_of_the_weights_is_avoided_where_a_later_backend_shares_the_first():
    packed = WeightLayout("packed")
    op = make_op(
        make_backend("native", 3.0, max_rows=2), make_backend("onednn", 2.0, layout=packed), make_backend("torch", 1.0)
    )
    plan = select(op, TagProblem(), CPU)
    assert tag_of(plan, 50) == 1.0
    assert plan.layouts == (("source", 16),)
    assert "second copy" in dict(plan.passed_over)["onednn (adds 2.0)"]


def test_a_plan_says_the_bytes_of_every_layout_that_it_holds():
    packed = WeightLayout("packed", num_bytes=lambda problem, source_bytes: 2 * source_bytes)
    op = make_op(make_backend("native", 3.0, max_rows=2), make_backend("onednn", 2.0, layout=packed))
    plan = select(op, TagProblem(), CPU)
    assert plan.layouts == (("source", 16), ("packed", 32))
    assert plan.weight_bytes == 48


def test_a_problem_that_nothing_can_run_is_an_error_that_lists_the_reasons():
    op = make_op(make_backend("native", reason="too small"), make_backend("torch", reason="too big"))
    with pytest.raises(NoBackendError, match=r"too small.*too big"):
        select(op, TagProblem(), CPU)


def test_a_plan_must_end_with_a_backend_for_any_number_of_rows():
    with pytest.raises(NoBackendError, match="more than 4 rows"):
        select(make_op(make_backend("torch", max_rows=4)), TagProblem(), CPU)


def test_only_backend_considers_no_other():
    op = make_op(make_backend("native", 3.0, max_rows=4), make_backend("torch", 1.0))
    assert tag_of(select(op, TagProblem(), CPU, only_backend="native"), 100) == 3.0
    with pytest.raises(NoBackendError, match="no backend 'aiter'"):
        select(op, TagProblem(), CPU, only_backend="aiter")


def test_a_choice_is_remembered_where_that_is_asked_for_and_no_longer():
    asked: list[TagProblem] = []
    backend = replace(make_backend(), supports=lambda problem, platform: asked.append(problem))
    op, small, large = make_op(backend), TagProblem(4), TagProblem(8)
    with plans_remembered():
        with plans_remembered():
            first = select(op, small, CPU)
        assert select(op, TagProblem(4), CPU) is first
        assert select(op, large, CPU).problem == large
        elsewhere = replace(CPU, backends=(), unavailable=(("torch", "is not there"),))
        with pytest.raises(NoBackendError):
            select(op, small, elsewhere)
        assert not select(op, small, CPU, only_backend="torch").passed_over
        assert select(replace(op, name="other"), small, CPU).op.name == "other"
    assert asked == [small, large, small, small]
    assert select(op, small, CPU) is not first
    assert len(asked) == 5


def test_a_backend_of_an_unknown_name_cannot_be_made():
    with pytest.raises(ValueError, match="'cudnn' is not one of"):
        make_backend("cudnn")


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({}, "needs the weight weight"),
        ({"weight": torch.ones(5)}, r"weight is \[5\].*calls for \[4\]"),
        ({"weight": torch.ones(4).double()}, "float64.*float32"),
        ({"weight": torch.ones(4), "scale": torch.ones(4)}, "not scale"),
    ],
)
def test_wrong_weights_are_refused_by_name(weights, words):
    plan = select(make_op(make_backend()), TagProblem(), CPU)
    with pytest.raises(WeightError, match=words):
        plan.prepare(weights)


def test_prepare_frees_the_source_of_a_repacked_weight():
    def copy(problem, weights: Any):
        return {name: weight.clone() for name, weight in weights.items()}

    packed = WeightLayout("packed", pack=copy)
    plan = select(make_op(make_backend(layout=packed)), TagProblem(), CPU)
    source = torch.ones(4)
    alive = weakref.ref(source)
    bound = plan.prepare({"weight": source})
    del source
    gc.collect()
    assert alive() is None
    assert bound(torch.zeros(1, 4))[0, 0] == 1.0


def test_prepare_copies_nothing_where_the_source_layout_serves():
    weight = torch.randn(32, 32)
    plan = select(LINEAR, LinearProblem(32, 32, torch.float32), only_backend="torch")
    assert plan.prepare({"weight": weight}).packed["source"]["weight"] is weight


def test_a_bound_plan_reports_the_bytes_it_holds():
    plan = select(LINEAR, LinearProblem(32, 16, torch.float32, bias=True), only_backend="torch")
    bound = plan.prepare({"weight": torch.randn(16, 32), "bias": torch.randn(16)})
    assert bound.weight_bytes == plan.weight_bytes == 4 * (16 * 32 + 16)


class Block(torch.nn.Module):
    """A norm, a linear and an add-norm through plans, as a model has them."""

    def __init__(self):
        super().__init__()
        weight = torch.linspace(0.5, 1.5, 32)
        self.norm = select(RMS_NORM, RMSNormProblem(32, torch.float32)).prepare({"weight": weight})
        self.add_norm = select(ADD_RMS_NORM, RMSNormProblem(32, torch.float32)).prepare({"weight": weight})
        generator = torch.Generator().manual_seed(0)
        matrix = torch.randn(32, 32, generator=generator)
        # Two implementations by rows, so that a compiled call shows whether it picks as an eager one does.
        native, torch_backend = (replace(LINEAR.ordered_backends()[-1], max_rows=limit) for limit in (8, None))
        op = replace(LINEAR, backends=(native, torch_backend))
        self.linear = select(op, LinearProblem(32, 32, torch.float32)).prepare({"weight": matrix})

    def forward(self, x):
        hidden, residual = self.add_norm(self.linear(self.norm(x)), x)
        return hidden + residual


def test_a_module_of_plans_compiles_to_one_graph_for_any_number_of_rows():
    block = Block()
    graphs = []

    def backend(graph, example_inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(block, fullgraph=True, backend=backend, dynamic=True)
    for num_rows in (5, 3, 8, 9, 40):
        x = torch.randn(num_rows, 32, generator=torch.Generator().manual_seed(num_rows))
        assert torch.equal(compiled(x), block(x))
    assert len(graphs) == 1
    called = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert [name for name in called if name.startswith("atom_kernels")] == [
        "atom_kernels.rms_norm.default",
        "atom_kernels.linear.default",
        "atom_kernels.add_rms_norm.default",
    ]


def test_opaque_ops_agree_with_their_fakes():
    block = Block()
    x = torch.randn(5, 32)
    for bound, inputs in ((block.norm, (x,)), (block.linear, (x,)), (block.add_norm, (x, x))):
        torch.library.opcheck(bound.opaque_op, (bound.handle, *inputs), test_utils=("test_schema", "test_faketensor"))


def test_plan_with_takes_exactly_the_backend_given():
    backends = (make_backend("native", 3.0, max_rows=1), make_backend("torch", 1.0))
    assert tag_of(plan_with(make_op(*backends), TagProblem(), backends[0]), 100) == 3.0


@pytest.mark.parametrize("name", atom_kernels.__all__)
def test_every_public_name_of_the_package_is_there(name):
    assert getattr(atom_kernels, name).__name__ == name


@pytest.mark.parametrize(
    "problem",
    [
        paged.make_problem(4, 2, 32),
        latent.make_problem(4, 32, 16, 8, 16),
        index.make_problem(4, 32, 8, 8),
        sparse.make_problem(4, 32, 16, 8, 16, 8),
    ],
    ids=lambda problem: problem.name,
)
def test_the_contract_alone_says_that_it_is_no_kernel(problem):
    plans = usable_plans(problem)
    assert [plan.backend for plan in plans if not plan.has_kernel] == ["reference"]
    assert len(plans) > 1


@pytest.mark.parametrize(("first", "has_kernel"), [("native", True), ("onednn", True), ("torch", False)])
def test_an_operator_has_a_kernel_where_anything_but_torch_serves_the_fewest_rows(first, has_kernel):
    op = make_op(make_backend(first, max_rows=4), make_backend("torch"))
    assert select(op, TagProblem(), CPU).has_kernel == has_kernel
