"""New keys and values go to their slots, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from atom_kernels.attention import apply_prologue, write_cache
from atom_kernels.attention.cases import make_step
from atom_kernels.attention.ops import make_problem
from atom_kernels.attention.torch_backend import TorchAttention
from atom_kernels.mixers import select_mixer
from atom_kernels.native import native_unavailable

BACKENDS = [name for name in ("native", "torch", "reference") if name != "native" or native_unavailable() is None]


def make_cache(dtype=torch.float32, num_blocks=3, block_size=4, heads=2, head_dim=8):
    return tuple(torch.zeros(num_blocks, block_size, heads, head_dim, dtype=dtype) for _ in range(2))


def test_tokens_go_to_block_and_offset_of_their_slots():
    k_cache, v_cache = make_cache()
    k, v = torch.randn(2, 2, 8), torch.randn(2, 2, 8)
    write_cache((k_cache, v_cache), (k, v), torch.tensor([9, 2]))
    assert torch.equal(k_cache[2, 1], k[0])
    assert torch.equal(v_cache[0, 2], v[1])
    assert k_cache.count_nonzero() == k.count_nonzero()


def test_a_negative_slot_writes_nothing():
    k_cache, v_cache = make_cache()
    write_cache((k_cache, v_cache), (torch.ones(2, 2, 8), torch.ones(2, 2, 8)), torch.tensor([-1, 5]))
    assert k_cache.sum() == v_cache.sum() == 16
    assert k_cache[1, 1].sum() == 16


def test_float8_rounds_to_the_nearest_and_saturates():
    k_cache, v_cache = make_cache(torch.float8_e4m3fn)
    k = torch.full((1, 2, 8), 1000.0)
    v = torch.full((1, 2, 8), -1.06)
    write_cache((k_cache, v_cache), (k, v), torch.tensor([0]))
    assert k_cache[0, 0].float().unique().tolist() == [448.0]
    assert v_cache[0, 0].float().unique().tolist() == [-1.0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_writes_rotated_keys_and_plain_values_to_its_slots_only(backend, dtype):
    problem = make_problem(4, 2, 32, dtype, block_size=4)
    step = make_step(problem, [(1, 9), (3, 3)], scattered=True, rotary_dim=32)
    step.geometry.slot_mapping[2] = -1
    before_v = step.caches[1].clone()
    _, k_cache, v_cache = step.run(select_mixer(problem, only_backend=backend))
    slots = step.geometry.slot_mapping
    changed = (v_cache != before_v).flatten(0, 1).any(dim=-1).any(dim=-1).nonzero().flatten()
    assert changed.tolist() == sorted(slots[slots >= 0].tolist())
    written = slots >= 0
    assert torch.equal(v_cache.flatten(0, 1)[slots[written]], step.inputs[2][written])
    _, rotated = apply_prologue(step.inputs[0], step.inputs[1], step.prologue)
    torch.testing.assert_close(k_cache.flatten(0, 1)[slots[written]], rotated[written])


def test_adjacent_blocks_are_read_in_place_and_scattered_ones_are_gathered():
    problem = make_problem(2, 1, 16)
    backend = TorchAttention(problem, problem.layout)
    together = backend.build_metadata(make_step(problem, [(1, 600)]).geometry)
    apart = backend.build_metadata(make_step(problem, [(1, 600)], scattered=True).geometry)
    assert [type(piece.slots) for _, pieces in together.requests for piece in pieces] == [slice, slice]
    assert [type(piece.slots) for _, pieces in apart.requests for piece in pieces] == [torch.Tensor, torch.Tensor]
