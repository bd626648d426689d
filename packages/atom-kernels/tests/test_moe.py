"""Routing and experts: what the contracts promise beyond the parity of backends."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from atom_kernels.activation import Activation
from atom_kernels.cases import mismatch
from atom_kernels.formats import Float8, Integers, Mxfp4, Offset
from atom_kernels.moe import ExpertsProblem, RoutingProblem
from atom_kernels.moe.ops import MOE_EXPERTS, MOE_ROUTE
from atom_kernels.operator import WeightError
from atom_kernels.platform import detect_platform
from atom_kernels.select import plan_with, select
from atom_kernels.triton.launch import launches_go_to

HERE = detect_platform()


def usable(op, problem):
    """Every backend that runs the problem here, as a pytest would list them."""
    backends = [b for b in op.ordered_backends() if not HERE.why_not(b.name) and not b.supports(problem, HERE)]
    assert backends
    return backends


def route_all(logits, bias=None, **rules):
    """What every backend chooses: (weights, ids) of each."""
    rules = {"num_experts": logits.shape[1], "top_k": 2, "dtype": logits.dtype} | rules
    problem = RoutingProblem(correction_bias=bias is not None, **rules)
    weights = {} if bias is None else {"correction_bias": bias}
    return [plan_with(MOE_ROUTE, problem, b).prepare(weights)(logits) for b in usable(MOE_ROUTE, problem)]


def make_experts(problem, num_tokens, seed=0):
    weights, (x, gates, ids, _) = MOE_EXPERTS.make_inputs(problem, num_tokens, torch.Generator().manual_seed(seed))
    return weights, (x, gates, ids)


def test_renormalized_softmax_is_the_softmax_of_the_chosen_logits():
    logits = torch.tensor([[1.0, 3.0, -2.0, 2.0]])
    for weights, ids in route_all(logits, renormalize=True):
        assert ids.tolist() == [[1, 3]]
        assert torch.allclose(weights, torch.softmax(torch.tensor([[3.0, 2.0]]), dim=-1))


def test_a_correction_bias_chooses_but_does_not_weigh():
    logits, bias = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([0.0, 0.0, 0.0, 9.0])
    for weights, ids in route_all(logits, bias, scoring="sigmoid"):
        assert ids.tolist() == [[3, 0]]
        assert torch.allclose(weights, torch.sigmoid(torch.tensor([[-1.0, 2.0]])))


@pytest.mark.parametrize(("group_score", "chosen"), [("max", [0, 1]), ("top2", [3, 2])])
def test_only_experts_of_the_best_groups_are_chosen(group_score, chosen):
    # The first group has the best expert, the second the best pair.
    logits = torch.tensor([[3.0, -9.0, 1.9, 2.0]])
    rules = {"num_groups": 2, "top_groups": 1, "group_score": group_score, "scoring": "sigmoid"}
    for _, ids in route_all(logits, **rules):
        assert ids.tolist() == [chosen]


def test_the_best_expert_comes_first():
    logits = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    for weights, ids in route_all(logits, top_k=6):
        assert torch.equal(logits.gather(1, ids.long()), logits.topk(6).values)
        assert torch.equal(weights, weights.sort(descending=True).values)


def test_of_equal_scores_the_lower_expert_wins():
    for _, ids in route_all(torch.zeros(3, 40), top_k=5):
        assert ids.tolist() == [[0, 1, 2, 3, 4]] * 3


def test_weights_are_scaled_last():
    for weights, _ in route_all(torch.tensor([[0.0, 0.0, -50.0]]), renormalize=True, scaling_factor=2.5):
        assert torch.allclose(weights, torch.tensor([[1.25, 1.25]]))


def test_logits_far_apart_and_infinite_give_finite_weights():
    logits = torch.tensor([[300.0, -300.0, 0.0, float("-inf")]])
    for scoring in ("softmax", "sigmoid"):
        for weights, ids in route_all(logits, top_k=3, scoring=scoring, renormalize=True):
            assert ids.tolist() == [[0, 2, 1]]
            assert torch.isfinite(weights).all()


def test_rows_of_garbage_still_name_experts_that_exist():
    """Padded rows of a captured graph may hold anything."""
    for rules in ({}, {"num_groups": 4, "top_groups": 2, "group_score": "top2"}):
        for _, ids in route_all(torch.full((2, 16), float("nan")), top_k=4, **rules):
            assert bool(((ids >= 0) & (ids < 16)).all())
            assert all(len(set(row)) == 4 for row in ids.tolist())


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"scoring": "tanh"}, "scoring is 'tanh'; supported: softmax, sigmoid"),
        ({"group_score": "mean"}, "group_score is 'mean'"),
        ({"num_groups": 3}, "8 experts do not form 3 equal groups"),
        ({"num_groups": 4, "top_groups": 5}, "top_groups is 5"),
        ({"num_groups": 4, "top_k": 3}, "can choose among 2 experts"),
        ({"num_groups": 8, "group_score": "top2", "top_k": 1}, "no two best"),
    ],
)
def test_a_routing_that_cannot_be_is_refused(rules, says):
    with pytest.raises(ValueError, match=says):
        RoutingProblem(**({"num_experts": 8, "top_k": 2} | rules))


def test_an_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="activation is 'relu6'"):
        ExpertsProblem(2, 1, 4, 4, torch.float32, activation="relu6")


@pytest.mark.parametrize(
    ("dtype", "weight_format"),
    [
        (torch.float32, None),
        (torch.bfloat16, None),
        (torch.float32, Mxfp4()),
        (torch.bfloat16, Integers(4, 32, Offset.ZERO_POINT)),
        (torch.float32, Float8(16, 32)),
        (torch.float32, Integers(8)),
    ],
)
def test_a_token_has_the_same_bits_in_any_batch(dtype, weight_format):
    sizes = (72, 40) if weight_format is None else (96, 64)
    formats = {"gate_up_format": weight_format, "down_format": weight_format}
    problem = ExpertsProblem(7, 3, *sizes, dtype, bias=True, **formats)
    plan = select(MOE_EXPERTS, problem)
    if plan.rows[0].backend != "native":
        pytest.skip("only the C kernel promises this")
    weights, (x, gates, ids) = make_experts(problem, 45)
    run = plan.prepare(weights)
    whole = run(x, gates, ids)
    for size in (1, 2, 3, 7):
        parts = [run(*rows) for rows in zip(x.split(size), gates.split(size), ids.split(size), strict=True)]
        assert torch.equal(torch.cat(parts), whole)
    order = torch.randperm(45, generator=torch.Generator().manual_seed(1))
    assert torch.equal(run(x[order], gates[order], ids[order]), whole[order])


def test_more_tokens_than_pass_at_once_give_the_same_rows():
    problem = ExpertsProblem(3, 2, 8, 8, torch.float32)
    weights, (x, gates, ids) = make_experts(problem, 1100)
    for backend in usable(MOE_EXPERTS, problem):
        run = plan_with(MOE_EXPERTS, problem, backend).prepare(weights)
        parts = [run(*rows) for rows in zip(x.split(300), gates.split(300), ids.split(300), strict=True)]
        assert torch.allclose(run(x, gates, ids), torch.cat(parts), atol=1e-6)


PACKED = ExpertsProblem(6, 2, 96, 64, torch.float32, bias=True, gate_up_format=Mxfp4(), down_format=Float8(16, 32))


def test_packed_experts_take_the_bytes_that_their_plan_promises():
    for backend in usable(MOE_EXPERTS, PACKED):
        plan = plan_with(MOE_EXPERTS, PACKED, backend)
        weights, _ = make_experts(PACKED, 1)
        assert plan.prepare(weights).weight_bytes == plan.weight_bytes


def test_packed_experts_of_which_a_part_is_missing_are_refused_by_its_name():
    weights, _ = make_experts(PACKED, 1)
    del weights["gate_up_scale"]
    with pytest.raises(WeightError, match="moe_experts needs the weight gate_up_scale"):
        select(MOE_EXPERTS, PACKED).prepare(weights)


@pytest.mark.parametrize("change", [{"gate_up_format": Mxfp4()}, {"down_format": Integers(8)}])
def test_kernels_of_plain_experts_refuse_packed_ones(change):
    problem = ExpertsProblem(4, 2, 64, 32, torch.bfloat16, **change)
    named = next(iter(change.values())).name
    for backend in MOE_EXPERTS.ordered_backends():
        reason = backend.supports(problem, HERE) or ""
        assert backend.name == "torch" or named in reason or reason in ("for packed weights", "for quantized weights")


def test_experts_that_nobody_chose_are_not_read():
    problem = ExpertsProblem(6, 2, 32, 16, torch.float32)
    weights, (x, gates, _) = make_experts(problem, 9)
    ids = torch.tensor([[1, 4]] * 9, dtype=torch.int32)
    for backend in usable(MOE_EXPERTS, problem):
        spoiled = {name: tensor.clone() for name, tensor in weights.items() if tensor is not None}
        for tensor in spoiled.values():
            tensor[[0, 2, 3, 5]] = float("nan")
        actual = plan_with(MOE_EXPERTS, problem, backend).prepare(spoiled)(x, gates, ids)
        assert torch.equal(actual, plan_with(MOE_EXPERTS, problem, backend).prepare(weights)(x, gates, ids))


def test_an_id_that_is_no_experts_adds_nothing():
    problem = ExpertsProblem(4, 2, 32, 16, torch.float32)
    weights, (x, gates, ids) = make_experts(problem, 5)
    absent, silent = ids.clone(), gates.clone()
    absent[:, 0], absent[2] = -1, torch.tensor([4, -1], dtype=torch.int32)
    silent[:, 0], silent[2] = 0.0, 0.0
    for backend in usable(MOE_EXPERTS, problem):
        run = plan_with(MOE_EXPERTS, problem, backend).prepare(weights)
        assert torch.allclose(run(x, gates, absent), run(x, silent, ids), atol=1e-6)


def test_no_tokens_give_no_rows():
    problem = ExpertsProblem(4, 2, 32, 16, torch.float32)
    weights, (x, gates, ids) = make_experts(problem, 3)
    for backend in usable(MOE_EXPERTS, problem):
        run = plan_with(MOE_EXPERTS, problem, backend).prepare(weights)
        assert run(x[:0], gates[:0], ids[:0]).shape == (0, 32)
    for chosen, _ in route_all(torch.zeros(0, 8)):
        assert chosen.shape == (0, 2)


def test_strided_inputs_are_taken():
    problem = ExpertsProblem(4, 2, 32, 16, torch.float32)
    weights, (x, gates, ids) = make_experts(problem, 6)
    for backend in usable(MOE_EXPERTS, problem):
        run = plan_with(MOE_EXPERTS, problem, backend).prepare(weights)
        wide = torch.cat((x, x), dim=1)[:, :32]
        assert torch.equal(run(wide, gates.t().contiguous().t(), ids.t().contiguous().t()), run(x, gates, ids))


def test_large_values_are_clamped_in_the_swiglu_of_gpt_oss():
    problem = ExpertsProblem(1, 1, 1, 1, torch.float32, activation="swiglu_oai")
    weights = {"gate_up": torch.tensor([[[100.0], [-100.0]]]), "down": torch.ones(1, 1, 1)}
    expected = 7.0 * torch.sigmoid(torch.tensor(1.702 * 7.0)) * (-7.0 + 1.0)
    for backend in usable(MOE_EXPERTS, problem):
        run = plan_with(MOE_EXPERTS, problem, backend).prepare(weights)
        out = run(torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int32))
        assert torch.allclose(out, expected.view(1, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, gates, ids: (x.double(), gates, ids),
        lambda x, gates, ids: (x[:, :7], gates, ids),
        lambda x, gates, ids: (x, gates, ids[:, :1]),
        lambda x, gates, ids: (x, gates.double(), ids),
        lambda x, gates, ids: (x, gates, ids.long()),
    ],
)
def test_the_c_kernel_refuses_inputs_that_it_was_not_planned_for(wrong):
    problem = ExpertsProblem(4, 2, 32, 16, torch.float32)
    plan = select(MOE_EXPERTS, problem)
    if plan.rows[0].backend != "native":
        pytest.skip("torch checks its own inputs")
    weights, inputs = make_experts(problem, 3)
    with pytest.raises(TypeError, match="moe_experts"):
        plan.prepare(weights)(*wrong(*inputs))


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_backend_computes_an_activation_or_refuses_it_by_name(activation, dtype):
    problem = ExpertsProblem(4, 2, 64, 32, dtype, activation, batch_invariant=True)
    weights, inputs = make_experts(problem, 9)
    wanted = MOE_EXPERTS.reference(problem, weights, *inputs)
    for backend in MOE_EXPERTS.ordered_backends():
        if HERE.why_not(backend.name) is not None:
            continue
        if (reason := backend.supports(problem, HERE)) is not None:
            assert any(part in reason for part in (activation, "avx512_bf16", "quantized weights"))
            continue
        got = plan_with(MOE_EXPERTS, problem, backend).prepare(dict(weights))(*inputs)
        assert mismatch(got, wanted, MOE_EXPERTS.tolerance(problem)) is None, backend.implementation


def test_an_activation_that_faster_backends_lack_is_served_by_torch():
    problem = ExpertsProblem(4, 2, 64, 32, torch.float32, Activation.RELU2)
    assert [row.backend for row in select(MOE_EXPERTS, problem).rows][-1] in ("torch", "triton")


@pytest.mark.parametrize("backend", MOE_EXPERTS.backends, ids=lambda backend: backend.implementation)
def test_an_activation_that_is_new_is_refused_by_name_and_taken_for_no_other(backend):
    problem = ExpertsProblem(4, 2, 64, 32, torch.float32 if backend.name == "native" else torch.bfloat16)
    object.__setattr__(problem, "activation", "mish")
    if backend.name != "torch":
        assert "not mish" in (backend.supports(problem, HERE) or "")
        return
    weights, inputs = make_experts(problem, 3)
    with pytest.raises(ValueError, match="activation is 'mish'"):
        backend.bind(problem, weights)(*inputs)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("num_experts", [8, 60])
def test_experts_launch_no_kernel_that_a_size_told_apart_does_not_launch(num_experts):
    """These sizes are compiled ahead; few pairs have several kernels."""
    from atom_kernels.moe.triton.experts_backend import EXPERTS_BACKEND

    problem = ExpertsProblem(num_experts, 3, 32, 16, torch.bfloat16)
    weights, _ = make_experts(problem, 1)
    kernel = EXPERTS_BACKEND.bind(problem, weights)

    def launched(num_tokens: int) -> set[str]:
        found = set()

        def note(kernel, grid, *arguments, **options):
            given = [None if each is None else type(each) for each in arguments]
            found.add(f"{kernel.__name__} {given} {options}")

        x, gates, ids, _ = MOE_EXPERTS.make_inputs(problem, num_tokens, torch.Generator())[1]
        with launches_go_to(note):
            kernel(x, gates, ids)
        return found

    by_kernels = {kernel.kernels_for(size): size for size in range(400, 0, -1)}
    expected = set().union(*(launched(size) for size in by_kernels.values()))
    assert len(by_kernels) >= 4
    for size in (*range(1, 30), *range(30, 400, 7)):
        assert launched(size) <= expected, size
