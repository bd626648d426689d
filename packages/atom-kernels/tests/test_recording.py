"""Work of a CPU that is recorded once, and replayed over what its inputs hold then."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from atom_kernels.formats import Integers, Offset
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.native import native_unavailable
from atom_kernels.recording import record, recordable
from atom_kernels.recording.native_calls import joined
from atom_kernels.recording.operators import out_variant, quickest
from atom_kernels.select import select

WIDTH, ROWS = 64, 3


@pytest.fixture(scope="module", params=["float32", "bfloat16", "bfloat16 in int4", "bfloat16 to float32"])
def linear(request):
    """A bound linear as wide as its inputs, whatever runs it here."""
    dtype = getattr(torch, request.param.split()[0])
    problem = LinearProblem(WIDTH, WIDTH, dtype)
    if "int4" in request.param:
        problem = replace(problem, weight_format=Integers(4, 32, Offset.MINIMUM))
    if "to float32" in request.param:
        problem = replace(problem, out_dtype=torch.float32)
    weights, _ = LINEAR.make_inputs(problem, ROWS, torch.Generator().manual_seed(0))
    return select(LINEAR, problem).prepare(weights), dtype


def layers(linear, ids, table):
    """What layers do: look rows up, multiply, view, add in place, convert, slice."""
    multiply, dtype = linear
    x = torch.embedding(table, ids)
    for _ in range(4):
        y = multiply(x)
        left, right = y.split(WIDTH // 2, dim=-1)
        x = torch.cat([right, left], dim=-1).contiguous()
        x += y
        x = x.float().tanh().to(dtype)
    return x


def inputs(dtype):
    generator = torch.Generator().manual_seed(1)
    return torch.tensor([1, 2, 3]), torch.randn(9, WIDTH, generator=generator).to(dtype)


@torch.inference_mode()
def test_a_replay_gives_the_bits_of_the_work_over_new_inputs(linear):
    ids, table = inputs(linear[1])
    work = record(lambda: layers(linear, ids, table))
    assert torch.equal(work.outputs, layers(linear, ids, table))
    for new in ([8, 0, 5], [4, 4, 4]):
        ids.copy_(torch.tensor(new))
        work.replay()
        assert torch.equal(work.outputs, layers(linear, ids, table))


@torch.inference_mode()
def test_operators_are_called_again_by_the_bindings_of_torch_that_take_what_they_take():
    ids, table = inputs(torch.float32)
    bound, aten = torch._C._VariableFunctions, torch.ops.aten
    assert quickest(aten.cos.out, (table,), {"out": table.clone()}) == bound.cos
    assert quickest(aten.embedding.default, (table, ids), {}) == bound.embedding
    assert quickest(aten.embedding.out, (table, ids), {"out": table[:3]}) is aten.embedding.out
    assert quickest(aten.elu.default, (table,), {}) is aten.elu.default  # torch binds it elsewhere
    assert out_variant(aten.embedding.default) is None  # it copies what another operator gives


@torch.inference_mode()
def test_what_others_allocate_meanwhile_is_no_memory_of_the_work(linear):
    ids, table = inputs(linear[1])
    work = record(lambda: layers(linear, ids, table))
    expected = work.outputs.clone()
    others = [torch.full((ROWS, WIDTH), float(number)) for number in range(200)]
    work.replay()
    assert torch.equal(work.outputs, expected)
    assert all(bool((other == number).all()) for number, other in enumerate(others))


@torch.inference_mode()
def test_memory_that_only_kernels_saw_is_lent_again_once_its_tensor_is_gone():
    fill, copy = recordable(ctypes.memset), recordable(ctypes.memmove)

    def work():
        kept = torch.empty(50, 1000, dtype=torch.uint8)
        for number in range(50):
            passing = torch.empty(1000, dtype=torch.uint8)
            fill(passing.data_ptr(), number, 1000)
            copy(kept[number].data_ptr(), passing.data_ptr(), 1000)
        return kept

    recorded = record(work)
    recorded.outputs.zero_()
    recorded.replay()
    assert torch.equal(recorded.outputs, torch.arange(50, dtype=torch.uint8).unsqueeze(1).expand(50, 1000))
    assert recorded.num_bytes < 50_000 + 3 * 1100


def test_calls_of_other_threads_are_not_recorded():
    counted = []
    count = recordable(counted.append)

    def work():
        other = threading.Thread(target=count, args=("other",))
        other.start()
        other.join()
        count("mine")

    recorded = record(work)
    counted.clear()
    recorded.replay()
    assert counted == ["mine"]
    count("later")
    recorded.replay()
    assert counted == ["mine", "later", "mine"]


X = torch.arange(6.0)
PLACE = torch.tensor(2)


@pytest.mark.parametrize(
    ("work", "named"),
    [
        (lambda: X[0].item(), "aten._local_scalar_dense"),
        (lambda: X + 1 if (X > 9).any() else X - 1, "aten._local_scalar_dense"),
        (lambda: X[:PLACE], "aten._local_scalar_dense"),
        (lambda: torch.equal(X, X + 1), "aten.equal"),
        (X.tolist, "tolist brings"),
        (X.numpy, "numpy brings"),
        (lambda: np.asarray(X), "__array__ brings"),
        (lambda: np.from_dlpack(X), "__dlpack__ brings"),
        (lambda: torch.tensor([PLACE, PLACE]), "tensor brings"),
        (lambda: X.new_tensor(data=[PLACE]), "new_tensor brings"),
        (lambda: torch.as_tensor([PLACE]), "as_tensor brings"),
        (lambda: torch.asarray([PLACE]), "asarray brings"),
        (lambda: torch.where(X > 3), "aten.nonzero"),
        (lambda: X[X > 3], "aten.index.Tensor chooses by a mask"),
        (lambda: X.repeat_interleave(torch.arange(6)), "aten.repeat_interleave"),
        (lambda: torch.tensor_split(X, PLACE[None]), "tensor_split brings"),
        (lambda: X.tensor_split(PLACE[None]), "tensor_split brings"),
        (lambda: (X + 1).unsqueeze_(0), "aten.unsqueeze_"),
    ],
)
@pytest.mark.parametrize("inference", [True, False], ids=["inference", "plain"])
def test_work_that_brings_values_to_python_says_so_and_is_not_replayed(work, named, inference):
    with torch.inference_mode(inference):
        recorded = record(work)
        expected = work()
    assert same(recorded.outputs, expected)  # what it returned is right all the same
    assert recorded.why_not.startswith(named)
    with pytest.raises(RuntimeError, match="cannot be replayed"):
        recorded.replay()


def same(one, other):
    if isinstance(one, list | tuple):
        return all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else np.array_equal(one, other)


def of_a_layer(x, weight):
    """Operators as layers of other libraries have them."""
    y = torch.nn.functional.linear(x, weight) + x.reshape(3, -1)
    top, places = y.softmax(-1).topk(2)
    counts = torch.zeros(x.shape[1]).index_add_(0, places.flatten(), top.flatten().float())
    widened = torch.broadcast_tensors(y, counts.to(y.dtype))
    sums = torch.stack([one.sum(-1, keepdim=True) for one in widened]).expand(2, 3, 4)
    ordered = torch.sort(places.view(-1), stable=True)
    chosen = y[torch.arange(3), places[:, 0]]
    return [
        y,
        top,
        places,
        counts,
        *widened,
        sums,
        *ordered,
        chosen,
        torch.ones(2).mul_(3),
        torch.tensor([4]),
        y.new_tensor([[5]]),
        torch.einsum("ij,kj->ik", y, y),
    ]


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_operators_of_torch_give_is_written_anew_where_it_lies(dtype):
    draw = torch.Generator().manual_seed(2)
    x, weight = torch.randn(3, 8, generator=draw).to(dtype), torch.randn(8, 8, generator=draw).to(dtype)
    work = record(lambda: of_a_layer(x, weight))
    places = [one.data_ptr() for one in work.outputs]
    assert work.why_not is None
    for _ in range(2):
        x.copy_(torch.randn(3, 8, generator=draw))
        work.replay()
        assert same(work.outputs, of_a_layer(x, weight))
    assert [one.data_ptr() for one in work.outputs] == places


class Asked(TorchDispatchMode):
    """Notes which operators torch is asked for."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.append(str(operator))
        return operator(*args, **(kwargs or {}))


@torch.inference_mode()
def test_operators_that_can_write_into_old_memory_do_so_and_views_are_not_made_again():
    x = torch.randn(4, 6)
    work = record(lambda: torch.cat(((x + x).cos().view(6, 4).t(), x)).split(2)[1].clone())
    with Asked() as asked:
        work.replay()
    assert asked.names == ["aten.add.out", "aten.cos.out", "aten.cat.out", "aten.copy_.default"]


def test_a_kernel_without_memory_is_an_error():
    answers = [1, 0]
    recorded = record(lambda: recordable(lambda: answers.pop(0))())
    with pytest.raises(MemoryError, match="no memory"):
        recorded.replay()


def run_all(calls):
    for call in calls:
        call()


WHOLE = [ctypes.c_int32(-5), ctypes.c_void_p(None), ctypes.c_void_p(2**64 - 8)]
WHOLE += [ctypes.c_int64(-number << 32) for number in range(len(WHOLE), 32)]
REAL = [ctypes.c_float(0.1), ctypes.c_double(-1e300)] * 4
MIXED = [each for pair in zip(WHOLE, REAL, strict=False) for each in pair] + WHOLE[8:]


@pytest.mark.parametrize("arguments", [MIXED, MIXED + WHOLE[:1], MIXED + REAL[:1]], ids=["fit", "whole", "real"])
def test_kernels_get_arguments_of_every_kind_again_and_again(arguments):
    seen = []
    types = [type(each) for each in arguments]
    kernel = ctypes.CFUNCTYPE(ctypes.c_int64, *types)(lambda *values: seen.append(values) or 7)
    kernel.argtypes = types
    calls = joined([(kernel, tuple(arguments), 7)] * 3 + [(seen.append, ("Python",), None)])
    run_all(calls)
    assert seen == [tuple(each.value for each in arguments)] * 3 + ["Python"]
    if native_unavailable("replay") is None:
        assert len(calls) == (2 if arguments is MIXED else 4)


def test_a_kernel_that_answers_otherwise_ends_the_replay():
    answers = iter([0, 1])
    kernel = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: next(answers))
    calls = joined([(kernel, (), 0)] * 3)
    with pytest.raises(MemoryError, match="no memory"):
        run_all(calls)
    assert next(answers, None) is None
