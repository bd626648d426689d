"""Work of a CPU that is recorded once, and replayed over what its inputs hold then."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace

import pytest
import torch

from atom_kernels.formats import Integers, Offset
from atom_kernels.linear import LINEAR, LinearProblem
from atom_kernels.recording import record, recordable
from atom_kernels.select import select

WIDTH, ROWS = 64, 3


@pytest.fixture(scope="module", params=["float32", "bfloat16", "bfloat16 in int4"])
def linear(request):
    """A bound linear as wide as its inputs, whatever runs it here."""
    dtype = getattr(torch, request.param.split()[0])
    problem = LinearProblem(WIDTH, WIDTH, dtype)
    if "int4" in request.param:
        problem = replace(problem, weight_format=Integers(4, 32, Offset.MINIMUM))
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


def test_a_kernel_without_memory_is_an_error():
    answers = [1, 0]
    recorded = record(lambda: recordable(lambda: answers.pop(0))())
    with pytest.raises(MemoryError, match="no memory"):
        recorded.replay()
